"""The sizes of a model, read off its tensors' shapes; whatever does not fit together is explained."""
from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from oxygen_ros.model.config import PRESETS, ModelConfig
from oxygen_ros.model.names import EMBED_TOKENS, EXPERT, LANGUAGE, LM_HEAD, VISION, Shape, expected
from oxygen_ros.policy.errors import CheckpointError, one_line

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
    sizes = _elect(shapes)
    if absent := [places[0][0] for size, places in _VOTES.items() if size not in sizes]:
        known = {_masked(name) for name in (*expected(PRESETS['tiny']), EMBED_TOKENS)}
        raise CheckpointError(_complaint(path, shapes, absent, [n for n in shapes if _masked(n) not in known], []))
    side, queries = math.isqrt(sizes.pop('tokens')), sizes.pop('queries')
    width = sizes['vision_width']
    try:
        config = ModelConfig(
            **sizes, **rest, image=side * sizes['patch'], heads=queries // max(1, sizes['head_dim']),
            vision_heads=vision_heads or (16 if width == 1152 else width // 16),
            vision_layers=_layers(shapes, VISION + 'encoder.layers.'),
            depth=max(_layers(shapes, LANGUAGE + 'layers.'), _layers(shapes, EXPERT + 'model.layers.')))
    except ValidationError as error:
        raise CheckpointError(f'{path}: impossible sizes: {one_line(error)}; is this a pi0.5 model?') from None
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


def _elect(shapes: Mapping[str, Shape]) -> dict[str, int]:
    """The sizes that most tensors vote for; those that no tensor tells are left out."""
    ballots = defaultdict(list)
    for size, places in _VOTES.items():
        for name, axis in places:
            ballots[name].append((size, axis))
    votes: dict[str, Counter[int]] = defaultdict(Counter)
    for name, shape in shapes.items():
        for size, axis in ballots[_masked(name)]:
            if axis < len(shape):
                votes[size][shape[axis]] += 1
    return {size: counter.most_common(1)[0][0] for size, counter in votes.items()}


def _masked(name: str) -> str:
    return re.sub(r'\.\d+\.', '.#.', name)


def _layers(shapes: Mapping[str, Shape], prefix: str) -> int:
    numbered = re.compile(re.escape(prefix) + r'(\d+)\.')
    return len({match[1] for name in shapes if (match := numbered.match(name))})


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
