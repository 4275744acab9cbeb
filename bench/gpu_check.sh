#!/usr/bin/env bash
# Builds, checks parity and times everything on one GPU in under 8 minutes; a short table comes last.
#
#     bench/gpu_check.sh                                  # one H200: the full-size model in bfloat16
#     DEVICE=cpu PRESET=tiny REPEAT=3 bench/gpu_check.sh  # the same steps without a GPU
#
# Needs no ROS. Missing Python packages are taken from the wheels in WHEELS, if there are any, and installed for this
# run only (on a machine without network: pip download -d .whl pydantic tyro ... beforehand).
# OUT: folder for the figures (gpu_check.json, gpu_check.log). PYTHON: the interpreter that has torch.
set -euo pipefail
cd "$(dirname "$0")/.."
DEVICE=${DEVICE:-cuda} PYTHON=${PYTHON:-python3} OUT=${OUT:-build/gpu_check} WHEELS=${WHEELS:-.whl}
case $DEVICE in
  cpu) DTYPE=float32 PRESET=${PRESET:-tiny} REPEAT=${REPEAT:-5} ;;
  *)   DTYPE=bfloat16 PRESET=${PRESET:-pi05} REPEAT=${REPEAT:-20} ;;
esac
mkdir -p "$OUT"
site=$(mktemp -d)
trap 'rm -rf "$site"' EXIT
export PYTHONPATH=$PWD:$site${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1

step() { printf '\n== %s (at %d s)\n' "$*" "$SECONDS"; }

step build
if compgen -G "$WHEELS/*.whl" >/dev/null; then
  "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --target "$site" "$WHEELS"/*.whl
fi
"$PYTHON" -m compileall -q oxygen_ros
"$PYTHON" - "$DEVICE" <<'PY'
import importlib.util, sys
missing = [name for name in ('torch', 'numpy', 'pydantic', 'tyro', 'rich', 'tokenizers', 'sentencepiece', 'safetensors',
                             'cv2', 'PIL') if importlib.util.find_spec(name) is None]
if missing:
    sys.exit(f'gpu_check: {sys.executable} has no {", ".join(missing)}: pip install them, or put their wheels in WHEELS')
import torch
if sys.argv[1] != 'cpu' and not torch.cuda.is_available():
    sys.exit('gpu_check: torch sees no CUDA device; DEVICE=cpu runs the same steps on the CPU')
print('torch', torch.__version__, torch.cuda.get_device_name() if sys.argv[1] != 'cpu' else 'cpu')
PY

step parity
parity=holds
timeout 120 "$PYTHON" -m oxygen_ros.bench.parity --preset tiny --device "$DEVICE" || parity=FAILED

step "times: $PRESET, $DTYPE"
timeout 300 "$PYTHON" -m oxygen_ros.cli bench engine --preset "$PRESET" --device "$DEVICE" --dtype "$DTYPE" \
  --modes peer,isolated,shared,continuous,ride,draft --repeat "$REPEAT" --json "$OUT/gpu_check.json" \
  >"$OUT/gpu_check.log" 2>&1 || { tail -20 "$OUT/gpu_check.log"; exit 1; }

step "$PRESET on $DEVICE: parity $parity"
"$PYTHON" -m oxygen_ros.bench.report "$OUT/gpu_check.json"
echo "parity $parity; $SECONDS s in all; figures: $OUT"
[ "$parity" = holds ]
