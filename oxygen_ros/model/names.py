"""The public names and shapes of every tensor of a pi0.5 model.

Names are those of openpi's PyTorch checkpoints, which LeRobot keeps behind a ``model.`` prefix.
"""
from __future__ import annotations

from oxygen_ros.model.config import ModelConfig

PALIGEMMA = 'paligemma_with_expert.paligemma.'
EXPERT = 'paligemma_with_expert.gemma_expert.'
VISION = PALIGEMMA + 'model.vision_tower.vision_model.'
PROJECTOR = PALIGEMMA + 'model.multi_modal_projector.linear.'
LANGUAGE = PALIGEMMA + 'model.language_model.'
LM_HEAD = PALIGEMMA + 'lm_head.weight'
EMBED_TOKENS = LANGUAGE + 'embed_tokens.weight'
EXPERT_LM_HEAD = EXPERT + 'lm_head.weight'

Shape = tuple[int, ...]


def expected(config: ModelConfig) -> dict[str, Shape]:
    """Name -> shape of every tensor that inference reads.

    ``embed_tokens`` is absent because it is tied to ``lm_head`` in public files; the expert's ``lm_head`` is absent
    because nothing reads it.
    """
    return {**_vision(config), **_language(config), **_expert(config)}


def _linear(name: str, outputs: int, inputs: int) -> dict[str, Shape]:
    return {name + '.weight': (outputs, inputs), name + '.bias': (outputs,)}


def _norm(name: str, width: int) -> dict[str, Shape]:
    return {name + '.weight': (width,), name + '.bias': (width,)}


def _vision(c: ModelConfig) -> dict[str, Shape]:
    width = c.vision_width
    shapes = {
        VISION + 'embeddings.patch_embedding.weight': (width, 3, c.patch, c.patch),
        VISION + 'embeddings.patch_embedding.bias': (width,),
        VISION + 'embeddings.position_embedding.weight': (c.image_tokens, width),
    }
    for i in range(c.vision_layers):
        layer = f'{VISION}encoder.layers.{i}.'
        for norm in ('layer_norm1', 'layer_norm2'):
            shapes |= _norm(layer + norm, width)
        for projection in ('q_proj', 'k_proj', 'v_proj', 'out_proj'):
            shapes |= _linear(f'{layer}self_attn.{projection}', width, width)
        shapes |= _linear(layer + 'mlp.fc1', c.vision_mlp, width)
        shapes |= _linear(layer + 'mlp.fc2', width, c.vision_mlp)
    return shapes | _norm(VISION + 'post_layernorm', width) | _linear(PROJECTOR[:-1], c.width, width)


def _gemma(layer: str, c: ModelConfig, width: int, mlp: int) -> dict[str, Shape]:
    queries = c.heads * c.head_dim
    return {
        layer + 'self_attn.q_proj.weight': (queries, width),
        layer + 'self_attn.k_proj.weight': (c.head_dim, width),
        layer + 'self_attn.v_proj.weight': (c.head_dim, width),
        layer + 'self_attn.o_proj.weight': (width, queries),
        layer + 'mlp.gate_proj.weight': (mlp, width),
        layer + 'mlp.up_proj.weight': (mlp, width),
        layer + 'mlp.down_proj.weight': (width, mlp),
    }


def _language(c: ModelConfig) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    for i in range(c.depth):
        layer = f'{LANGUAGE}layers.{i}.'
        shapes |= _gemma(layer, c, c.width, c.mlp)
        shapes |= {layer + norm + '.weight': (c.width,) for norm in ('input_layernorm', 'post_attention_layernorm')}
    return shapes | {LANGUAGE + 'norm.weight': (c.width,), LM_HEAD: (c.vocab, c.width)}


def _expert(c: ModelConfig) -> dict[str, Shape]:
    width = c.expert_width
    shapes: dict[str, Shape] = {}
    for i in range(c.depth):
        layer = f'{EXPERT}model.layers.{i}.'
        shapes |= _gemma(layer, c, width, c.expert_mlp)
        for norm in ('input_layernorm', 'post_attention_layernorm'):
            shapes |= _linear(f'{layer}{norm}.dense', 3 * width, width)
    shapes |= _linear(EXPERT + 'model.norm.dense', 3 * width, width)
    shapes |= _linear('action_in_proj', width, c.action_dim) | _linear('action_out_proj', c.action_dim, width)
    return shapes | _linear('time_mlp_in', width, width) | _linear('time_mlp_out', width, width)
