"""pi0.5 for training: the engine's network, batched and differentiable, over a dict of tensors by public name.

One forward reads an observation once and several language requests and noise samples on it: the rows of one sequence
are [images | prompt | request 1 | request 2 | ...], where every row sees the prefix and its own request's past, and
the expert's rows see the prefix and their own sample's actions. It is written for the `prefix_lm` mask. That it is
the same network as the engine's is a test.
"""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from oxygen_ros.model import names
from oxygen_ros.model.config import ModelConfig
from oxygen_ros.model.expert import time_embedding
from oxygen_ros.model.layers import EPS

Parameters = dict[str, Tensor]


@dataclass(frozen=True)
class Batch:
    """What one step of training reads. b observations, p prompt slots, t text rows, s noise samples.

    images: uint8 [b, cameras, side, side, 3]. prompt: ids [b, p], padded with 0 after `prompt_rows` [b].
    text: ids [b, t], seed and answer of one request after the other. owner, step: [b, t], the request a row belongs
    to (-1: padding) and its place in it. targets: ids [b, t], what a row should say next, -1 where nothing is learnt.
    actions, noise: normalised, [b, horizon, dim] and [b, s, horizon, dim]. times: [b, s] in [0, 1], 1 is pure noise.
    """

    images: Tensor
    prompt: Tensor
    prompt_rows: Tensor
    text: Tensor
    owner: Tensor
    step: Tensor
    targets: Tensor
    actions: Tensor
    noise: Tensor
    times: Tensor


def initial(config: ModelConfig, seed: int, numbers: Sequence[int] = ()) -> Parameters:
    """Fresh weights.

    The position embedding starts as a 2-D sine-cosine table, without which a small tower takes very long to learn
    where things are. The embedding of ``numbers``, ids of tokens that stand for 0, 1, 2 .., starts as waves of the
    value, so that neighbours look alike: otherwise each bin of the state must be learnt by itself. Residual branches
    start small.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in names.expected(config).items():
        if len(shape) > 1:
            tensor = torch.randn(shape, generator=generator) * tensor_fan_in(shape) ** -0.5
            if name.endswith(('o_proj.weight', 'out_proj.weight', 'down_proj.weight', 'fc2.weight')):
                tensor *= (2 * max(config.depth, 1)) ** -0.5
            if 'norm.dense' in name or name.startswith('action_out'):
                tensor *= 0.1
        else:
            layer_norm = name.startswith(names.VISION) and 'norm' in name and name.endswith('.weight')
            tensor = torch.full(shape, 1.0 if layer_norm else 0.0)
            if name.endswith('norm.dense.bias'):
                tensor[2 * config.expert_width:] = 1.0      # gates begin open
        tensors[name] = tensor
    tensors[names.VISION + 'embeddings.position_embedding.weight'] = _sine_cosine(config)
    if numbers:
        tensors[names.LM_HEAD][list(numbers)] = waves(len(numbers), config.width, generator)
    return tensors


def waves(count: int, width: int, generator: torch.Generator) -> Tensor:
    """Rows [count, width] of norm 1 that change smoothly from one to the next: ten waves in random directions."""
    phase = 2 * math.pi * torch.arange(count)[:, None] / count * torch.tensor([0.5, 1.0, 2.0, 4.0, 8.0])
    directions = torch.linalg.qr(torch.randn(width, 10, generator=generator))[0].T
    return torch.cat((phase.sin(), phase.cos()), dim=1) @ directions / 5 ** 0.5


def tensor_fan_in(shape: tuple[int, ...]) -> int:
    """Inputs per output of a weight."""
    return math.prod(shape[1:])


def _sine_cosine(config: ModelConfig) -> Tensor:
    side, width = config.image // config.patch, config.vision_width
    frequency = 1e2 ** -torch.linspace(0, 1, width // 4)
    angle = torch.arange(side)[:, None] * frequency * math.pi / 2
    line = torch.cat((angle.sin(), angle.cos()), dim=1)
    rows, columns = line[:, None].expand(-1, side, -1), line[None].expand(side, -1, -1)
    return 0.5 * torch.cat((rows, columns), dim=-1).reshape(side * side, width)


class Network:
    """The forward pass over ``parameters``."""

    def __init__(self, config: ModelConfig, parameters: Parameters, positions: int = 512) -> None:
        self.config, self.p = config, parameters
        frequency = 1e4 ** -(torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim)
        angle = torch.arange(positions, dtype=torch.float32)[:, None] * frequency
        self._cos, self._sin = angle.cos(), angle.sin()

    def see(self, images: Tensor) -> Tensor:
        """uint8 [n, side, side, 3] -> image rows [n, image_tokens, width]."""
        c, p, n = self.config, self.p, images.shape[0]
        side, head = c.image // c.patch, names.VISION + 'embeddings.'
        pixels = images.permute(0, 3, 1, 2).float().div_(127.5).sub_(1.0)
        patches = pixels.reshape(n, 3, side, c.patch, side, c.patch).permute(0, 2, 4, 1, 3, 5).reshape(n, side**2, -1)
        weight = p[head + 'patch_embedding.weight'].flatten(1)
        x = F.linear(patches, weight, p[head + 'patch_embedding.bias']) + p[head + 'position_embedding.weight']
        for i in range(c.vision_layers):
            layer = f'{names.VISION}encoder.layers.{i}.'
            h = self._layer_norm(x, layer + 'layer_norm1')
            q, k, v = (self._linear(h, f'{layer}self_attn.{part}_proj').unflatten(-1, (c.vision_heads, -1))
                       .transpose(1, 2) for part in 'qkv')
            attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
            x = x + self._linear(attended, layer + 'self_attn.out_proj')
            h = self._layer_norm(x, layer + 'layer_norm2')
            x = x + self._linear(F.gelu(self._linear(h, layer + 'mlp.fc1'), approximate='tanh'), layer + 'mlp.fc2')
        return self._linear(self._layer_norm(x, names.VISION + 'post_layernorm'), names.PROJECTOR[:-1])

    def __call__(self, batch: Batch, insulate: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """-> logits [targets that are learnt, vocab] in row order, velocity [b, s, horizon, dim], and the tower's
        rows [b * cameras, image_tokens, width].

        insulate: keep the gradient of the actions out of the language model and the tower (knowledge insulation).
        """
        c, p = self.config, self.p
        b, cameras = batch.images.shape[:2]
        image_rows = cameras * c.image_tokens
        seen = self.see(batch.images.flatten(0, 1))
        ids = torch.cat((batch.prompt, batch.text), dim=1)
        words = F.embedding(ids, p[names.LM_HEAD]) * math.sqrt(c.width)
        x = torch.cat((seen.view(b, image_rows, c.width), words), dim=1)
        prefix = image_rows + batch.prompt.shape[1]
        rows = image_rows + batch.prompt_rows                       # valid rows of each prefix
        mask, positions = self._layout(batch, prefix, rows)
        cos, sin = self._cos[positions], self._sin[positions]

        keys, values = [], []
        for i in range(c.depth):
            layer, last = f'{names.LANGUAGE}layers.{i}.', i == c.depth - 1
            h = self._rms_norm(x, layer + 'input_layernorm')
            k = _rotate(F.linear(h, p[layer + 'self_attn.k_proj.weight']), cos, sin)
            v = F.linear(h, p[layer + 'self_attn.v_proj.weight'])
            keys.append(k[:, :prefix])
            values.append(v[:, :prefix])
            at, bias = (slice(prefix, None), mask[:, prefix:]) if last else (slice(None), mask)
            if last:        # rows of the prefix are read no further than their keys and values
                x, h = x[:, prefix:], h[:, prefix:]
            q = F.linear(h, p[layer + 'self_attn.q_proj.weight']).view(b, -1, c.heads, c.head_dim)
            q = _rotate(q, cos[:, at, None], sin[:, at, None])
            x = x + F.linear(_attend(q, k, v, bias), p[layer + 'self_attn.o_proj.weight'])
            x = x + self._mlp(self._rms_norm(x, layer + 'post_attention_layernorm'), layer)
        hidden = self._rms_norm(x, names.LANGUAGE + 'norm')[batch.targets >= 0]
        logits = F.linear(hidden, p[names.LM_HEAD])

        if insulate:
            keys, values = [k.detach() for k in keys], [v.detach() for v in values]
        return logits, self._velocity(batch, keys, values, rows), seen

    @staticmethod
    def _layout(batch: Batch, prefix: int, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Additive mask [b, rows, rows] and RoPE positions [b, rows]."""
        b, t = batch.text.shape
        slot = torch.arange(prefix).expand(b, -1)
        nobody = torch.full((b, prefix), -2)                # no row of the prefix belongs to a request
        owner, step = torch.cat((nobody, batch.owner), dim=1), torch.cat((slot, batch.step), dim=1)
        own = (owner[:, :, None] == owner[:, None]) & (step[:, :, None] >= step[:, None]) & (owner >= -1)[:, None]
        valid = torch.cat((slot < rows[:, None], torch.zeros(b, t, dtype=torch.bool)), dim=1)
        mask = torch.zeros(own.shape).masked_fill_(~(own | valid[:, None]), -torch.inf)
        return mask, torch.cat((slot, rows[:, None] + batch.step), dim=1)

    def _velocity(self, batch: Batch, keys: list[Tensor], values: list[Tensor], rows: Tensor) -> Tensor:
        c, p = self.config, self.p
        b, s, horizon, dim = batch.noise.shape
        t = batch.times[..., None, None]
        noisy = t * batch.noise + (1 - t) * batch.actions[:, None]
        h = self._linear(noisy, 'action_in_proj').flatten(1, 2)                     # [b, s * horizon, width]
        cond = time_embedding(batch.times.flatten(), c.expert_width, c.min_period, c.max_period)
        cond = F.silu(self._linear(F.silu(self._linear(cond, 'time_mlp_in')), 'time_mlp_out')).view(b, s, -1)

        prefix = keys[0].shape[1]
        sample = torch.arange(s * horizon) // horizon
        positions = rows[:, None] + torch.arange(s * horizon) % horizon
        cos, sin = self._cos[positions], self._sin[positions]
        hidden = torch.arange(prefix) >= rows[:, None]                              # padding of the prompt
        hidden = torch.cat((hidden[:, None].expand(-1, s * horizon, -1),
                            (sample[:, None] != sample)[None].expand(b, -1, -1)), dim=-1)
        mask = torch.zeros(hidden.shape).masked_fill_(hidden, -torch.inf)
        for i in range(c.depth):
            layer = f'{names.EXPERT}model.layers.{i}.'
            n, gate = self._modulate(h, cond, layer + 'input_layernorm.dense', horizon)
            k = torch.cat((keys[i], _rotate(F.linear(n, p[layer + 'self_attn.k_proj.weight']), cos, sin)), dim=1)
            v = torch.cat((values[i], F.linear(n, p[layer + 'self_attn.v_proj.weight'])), dim=1)
            q = F.linear(n, p[layer + 'self_attn.q_proj.weight']).view(b, -1, c.heads, c.head_dim)
            q = _rotate(q, cos[:, :, None], sin[:, :, None])
            h = h + gate * F.linear(_attend(q, k, v, mask), p[layer + 'self_attn.o_proj.weight'])
            n, gate = self._modulate(h, cond, layer + 'post_attention_layernorm.dense', horizon)
            h = h + gate * self._mlp(n, layer)
        n, _ = self._modulate(h, cond, names.EXPERT + 'model.norm.dense', horizon)
        return self._linear(n, 'action_out_proj').view(b, s, horizon, dim)

    def _modulate(self, h: Tensor, cond: Tensor, name: str, horizon: int) -> tuple[Tensor, Tensor]:
        scale, shift, gate = self._linear(cond, name).repeat_interleave(horizon, dim=1).chunk(3, dim=-1)
        return F.rms_norm(h, h.shape[-1:], eps=EPS) * (1 + scale) + shift, gate

    def _mlp(self, h: Tensor, layer: str) -> Tensor:
        gate, up, down = (self.p[f'{layer}mlp.{part}_proj.weight'] for part in ('gate', 'up', 'down'))
        return F.linear(F.gelu(F.linear(h, gate), approximate='tanh') * F.linear(h, up), down)

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.p[name + '.weight'], self.p[name + '.bias'])

    def _layer_norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.p[name + '.weight'], self.p[name + '.bias'], EPS)

    def _rms_norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], 1 + self.p[name + '.weight'], EPS)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """q [b, rows, heads, d] over k, v [b, keys, d] with an additive mask [b, rows, keys] -> [b, rows, heads * d]."""
    b, rows, heads, d = q.shape
    scores = torch.bmm(q.reshape(b, rows * heads, d) * d ** -0.5, k.transpose(1, 2)).view(b, rows, heads, -1)
    weights = torch.softmax(scores + mask[:, :, None], dim=-1).view(b, rows * heads, -1)
    return torch.bmm(weights, v).view(b, rows, heads * d)
