"""The tensors of one ``model.safetensors``, under their public names, checked before any of them is read."""
from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors
import torch
from pydantic import ValidationError
from torch import Tensor

from oxygen_ros.model.config import PRESETS, ModelConfig
from oxygen_ros.model.errors import CheckpointError
from oxygen_ros.model.names import EMBED_TOKENS, EXPERT, EXPERT_LM_HEAD, LANGUAGE, LM_HEAD, VISION, Shape, expected

_DTYPES = {'F64': torch.float64, 'F32': torch.float32, 'F16': torch.float16, 'BF16': torch.bfloat16}
_COPY = 'the file was cut or damaged: copy it again'
_COMPARE = 1 << 24   # bytes


class Weights:
    """One safetensors file, read one tensor at a time into memory of its own.

    Not memory-mapped: mapped pages count as resident, and a file that is replaced under a running robot would crash
    it. ``shapes`` maps public names to shapes; names are brought to the public ones by these rules: a ``model.``
    prefix goes, ``action_time_mlp_*`` is ``time_mlp_*`` (early LeRobot), ``state_proj`` (pi0) and the expert's
    vocabulary are never read, an ``embed_tokens`` equal to ``lm_head`` goes, and either of the two stands for both.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._where: dict[str, tuple[torch.dtype, Shape, int, int]] = {}
        for name, entry in _header(path).items():
            public = _public(name)
            if public is None:
                continue
            if entry['dtype'] not in _DTYPES:
                raise CheckpointError(f'{path}: {name} is of type {entry["dtype"]}; quantised checkpoints are not '
                                      'read: use the one in float32 or bfloat16')
            if public in self._where:
                raise CheckpointError(f'{path}: {public} is there twice, once as {name}; remove one of them')
            self._where[public] = (_DTYPES[entry['dtype']], tuple(entry['shape']), entry['start'], entry['bytes'])
        self._tie()
        self.shapes: dict[str, Shape] = {name: shape for name, (_, shape, _, _) in self._where.items()}

    def get(self, name: str) -> Tensor:
        """The tensor on the CPU, in the file's dtype. KeyError if absent, CheckpointError if not finite."""
        dtype, shape, start, size = self._where[name]
        tensor = torch.empty(shape, dtype=dtype)
        with open(self.path, 'rb') as file:
            file.seek(start)
            read = file.readinto(memoryview(tensor.view(-1).view(torch.uint8).numpy())) if size else 0
        if read != size:
            raise CheckpointError(f'{self.path}: {name} ends early; {_COPY}')
        if size and not all(bound.isfinite() for bound in tensor.aminmax()):   # no temporary, unlike isfinite()
            raise CheckpointError(f'{self.path}: {name} holds values that are not finite; the file is damaged or the '
                                  'training diverged: take an earlier checkpoint')
        return tensor

    def _tie(self) -> None:
        head, embed = self._where.get(LM_HEAD), self._where.get(EMBED_TOKENS)
        if embed and not head:
            self._where[LM_HEAD] = self._where.pop(EMBED_TOKENS)
        elif embed and head and embed[:2] == head[:2] and self._same_bytes(embed[2], head[2], head[3]):
            del self._where[EMBED_TOKENS]

    def _same_bytes(self, a: int, b: int, size: int) -> bool:
        with open(self.path, 'rb') as first, open(self.path, 'rb') as second:
            first.seek(a)
            second.seek(b)
            return all(first.read(n) == second.read(n)
                       for n in (min(_COMPARE, size - done) for done in range(0, size, _COMPARE)))


def _header(path: Path) -> dict[str, dict[str, Any]]:
    """name -> dtype, shape, start (in the file), bytes."""
    try:
        with safetensors.safe_open(path, 'pt'):   # checks the header, the offsets and the file's length
            pass
        with open(path, 'rb') as file:
            length = int.from_bytes(file.read(8), 'little')
            header = json.loads(file.read(length))
    except OSError as error:
        raise CheckpointError(f'{path}: cannot be read ({error.strerror or error})') from None
    except Exception as error:   # safetensors has one type for all its errors and does not export it
        with open(path, 'rb') as file:
            pointer = file.read(40).startswith(b'version https://git-lfs')
        if pointer:
            raise CheckpointError(f'{path} is only a Git LFS pointer: fetch the file itself (git lfs pull)') from None
        raise CheckpointError(f'{path} is not a whole safetensors file ({error}); {_COPY}') from None
    header.pop('__metadata__', None)
    return {name: {'dtype': entry['dtype'], 'shape': entry['shape'], 'start': 8 + length + entry['data_offsets'][0],
                   'bytes': entry['data_offsets'][1] - entry['data_offsets'][0]} for name, entry in header.items()}


def _public(name: str) -> str | None:
    """The public name, or None for a tensor that inference never reads."""
    name = name.removeprefix('model.')
    name = re.sub(r'^action_time_mlp_(in|out)\.', r'time_mlp_\1.', name)
    return None if name == EXPERT_LM_HEAD or name.startswith('state_proj.') else name


# --- sizes ------------------------------------------------------------------------------------------------------
_TOWER, _GEMMA, _ACT = VISION + 'encoder.layers.#.', LANGUAGE + 'layers.#.', EXPERT + 'model.layers.#.'
# where each size can be read, (name, axis); the tensors vote, so that one wrong shape is blamed on itself
_VOTES: dict[str, tuple[tuple[str, int], ...]] = {
    'vision_width': ((_TOWER + 'layer_norm1.weight', 0), (_TOWER + 'layer_norm2.weight', 0)),
    'vision_mlp': ((_TOWER + 'mlp.fc1.weight', 0), (_TOWER + 'mlp.fc1.bias', 0), (_TOWER + 'mlp.fc2.weight', 1)),
    'patch': ((VISION + 'embeddings.patch_embedding.weight', 2), (VISION + 'embeddings.patch_embedding.weight', 3)),
    'tokens': ((VISION + 'embeddings.position_embedding.weight', 0),),
    'width': ((_GEMMA + 'input_layernorm.weight', 0), (_GEMMA + 'post_attention_layernorm.weight', 0)),
    'mlp': ((_GEMMA + 'mlp.gate_proj.weight', 0), (_GEMMA + 'mlp.up_proj.weight', 0),
            (_GEMMA + 'mlp.down_proj.weight', 1)),
    'head_dim': tuple((layer + f'self_attn.{part}_proj.weight', 0) for layer in (_GEMMA, _ACT) for part in 'kv'),
    'queries': tuple((layer + f'self_attn.{part}_proj.weight', axis) for layer in (_GEMMA, _ACT)
                     for part, axis in (('q', 0), ('o', 1))),
    'vocab': ((LM_HEAD, 0),),
    'expert_width': tuple((_ACT + f'self_attn.{part}_proj.weight', 1) for part in 'qkv'),
    'expert_mlp': ((_ACT + 'mlp.gate_proj.weight', 0), (_ACT + 'mlp.up_proj.weight', 0),
                   (_ACT + 'mlp.down_proj.weight', 1)),
    'action_dim': (('action_out_proj.bias', 0), ('action_out_proj.weight', 0), ('action_in_proj.weight', 1)),
}


def config_of(shapes: Mapping[str, Shape], path: Path, vision_heads: int | None = None, **rest: Any) -> ModelConfig:
    """Read the sizes off the tensors and check that exactly the tensors of such a model are there.

    rest: the other fields of the config, which no tensor tells (horizon, mask, ...). Raises CheckpointError.

    The number of SigLIP heads shows in no shape: 16 for the public width of 1152, otherwise heads of 16 as in the
    reference outputs, unless ``vision_heads`` says.
    """
    found: dict[str, Counter[int]] = {size: Counter() for size in _VOTES}
    ballots: dict[str, list[tuple[str, int]]] = {}
    for size, places in _VOTES.items():
        for name, axis in places:
            ballots.setdefault(name, []).append((size, axis))
    for name, shape in shapes.items():
        for size, axis in ballots.get(_masked(name), ()):
            if axis < len(shape):
                found[size][shape[axis]] += 1
    if unknown := [size for size, votes in found.items() if not votes]:
        known = {_masked(name) for name in [*expected(PRESETS['tiny']), EMBED_TOKENS]}
        absent = [places[0][0] for size, places in _VOTES.items() if size in unknown]
        raise CheckpointError(_complaint(path, shapes, absent, [n for n in shapes if _masked(n) not in known], []))
    sizes = {size: votes.most_common(1)[0][0] for size, votes in found.items()}
    side, queries = math.isqrt(sizes.pop('tokens')), sizes.pop('queries')
    try:
        config = ModelConfig(**sizes, **rest, image=side * sizes['patch'], heads=max(1, queries // sizes['head_dim']),
                             vision_heads=vision_heads or (16 if sizes['vision_width'] == 1152 else
                                                           max(1, sizes['vision_width'] // 16)),
                             vision_layers=_layers(shapes, VISION + 'encoder.layers.'),
                             depth=max(_layers(shapes, LANGUAGE + 'layers.'),
                                       _layers(shapes, EXPERT + 'model.layers.')))
    except ValidationError as error:
        fault = error.errors()[0]
        where = '.'.join(map(str, fault['loc']))
        raise CheckpointError(f'{path}: impossible sizes: {where} {fault["msg"]}; is this a pi0.5 model?') from None
    wanted = expected(config)
    if EMBED_TOKENS in shapes:   # untied by fine-tuning
        wanted[EMBED_TOKENS] = wanted[LM_HEAD]
    missing = [name for name in wanted if name not in shapes]
    unexpected = [name for name in shapes if name not in wanted]
    wrong = [f'{name} is {list(shapes[name])} instead of {list(shape)}'
             for name, shape in wanted.items() if name in shapes and shapes[name] != shape]
    if missing or unexpected or wrong:
        raise CheckpointError(_complaint(path, shapes, missing, unexpected, wrong))
    return config


def _masked(name: str) -> str:
    return re.sub(r'\.\d+\.', '.#.', name)


def _layers(shapes: Mapping[str, Shape], prefix: str) -> int:
    numbers = [int(name[len(prefix):].split('.')[0]) for name in shapes
               if name.startswith(prefix) and name[len(prefix):].split('.')[0].isdigit()]
    return 1 + max(numbers, default=0)


def _complaint(path: Path, shapes: Mapping[str, Shape], missing: list[str], unexpected: list[str],
               wrong: list[str]) -> str:
    parts = [f'{what} {_few(names)}' for what, names in
             (('missing', missing), ('unexpected', unexpected), ('mis-shaped:', wrong)) if names]
    return f'{path}: {"; ".join(parts)}. {_cause(shapes, missing, unexpected, wrong)}'


def _few(names: list[str], most: int = 4) -> str:
    more = f' and {len(names) - most} more' if len(names) > most else ''
    return ', '.join(names[:most]) + more


def _cause(shapes: Mapping[str, Shape], missing: list[str], unexpected: list[str], wrong: list[str]) -> str:
    """The likely cause and the remedy, for a person."""
    text = ' '.join(unexpected)
    if any(_masked(name) in (_ACT + 'input_layernorm.weight', EXPERT + 'model.norm.weight') for name in unexpected):
        return 'Likely a pi0 model, which has no adaRMS: this node runs pi0.5'
    if 'lora' in text:
        return 'Likely LoRA weights: merge them into the model and save it again'
    if 'memory' in text or 'proprio' in text:
        return 'Likely a LeRobot model with memory, which is not supported'
    if len(unexpected) == len(shapes) or not any(name.startswith((LANGUAGE, EXPERT)) for name in shapes):
        return 'Likely not a pi0.5 model at all: give the folder of a LeRobot or converted openpi pi0.5 checkpoint'
    if missing and unexpected:
        return 'Likely renamed by another version of the training code: save it with a version that loads it'
    if wrong:
        return 'Likely tensors of two different models: save the checkpoint again'
    if missing:
        return 'Likely saved or copied in part: save or copy the checkpoint again'
    return 'Likely saved by a model with more parts than pi0.5: save it without them'
