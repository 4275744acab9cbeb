"""pi0.5 as the public stacks compute it, from the same weights: what `peer` runs, and an independent check of ours.

Read off openpi's and LeRobot's PyTorch code and written anew: one vision pass per camera, absent cameras and unused
prompt slots as masked rows, separate q/k/v and gate/up products, eager attention with an additive mask and the KV head
repeated for every query head, every layer in full for every row, keys and values joined anew for each denoise step and
each token, time embedding and adaRMS computed in every step. Their module and cache objects are left out, so this is
faster than they are. (openpi compiles its step on a GPU; this does not.)
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from oxygen_ros.model import names
from oxygen_ros.model.config import ModelConfig
from oxygen_ros.model.expert import time_embedding, times

_EPS = 1e-6
_NOWHERE = torch.finfo(torch.float32).min / 2


@dataclass
class Cache:
    """Keys and values of every layer [slots, head_dim]; which slots may be read."""

    seen: Tensor
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


class PeerNet:
    """One network without batch dimension. ``copied``: bytes of keys and values that were copied so far."""

    def __init__(self, config: ModelConfig, get: Callable[[str], Tensor], device: torch.device, dtype: torch.dtype,
                 steps: int) -> None:
        self.config, self.device, self.dtype = config, device, dtype
        self.times = times(steps, config.schedule)
        self._weights = {name: get(name).to(device, dtype if self._is_body(name) else torch.float32)
                         for name in names.expected(config)}
        self.copied = 0

    @staticmethod
    def _is_body(name: str) -> bool:
        """Norms, time and action projections stay fp32."""
        return name.startswith(names.PALIGEMMA) and 'norm' not in name or '_proj' in name and 'action' not in name

    @torch.inference_mode()
    def encode(self, image: Tensor) -> Tensor:
        """One image [3, side, side] in [-1, 1] -> tokens [image_tokens, width]."""
        c, w = self.config, self._weights
        name = names.VISION + 'embeddings.'
        x = F.conv2d(image[None].to(self.device, self.dtype), w[name + 'patch_embedding.weight'],
                     w[name + 'patch_embedding.bias'], stride=c.patch)[0].flatten(1).T
        x = x + w[name + 'position_embedding.weight']
        for i in range(c.vision_layers):
            name = f'{names.VISION}encoder.layers.{i}.'
            h = self._layer_norm(x, name + 'layer_norm1')
            q, k, v = (self._linear(h, f'{name}self_attn.{part}_proj').view(len(h), c.vision_heads, -1).transpose(0, 1)
                       for part in 'qkv')
            attended = F.scaled_dot_product_attention(q[None], k[None], v[None])[0]
            x = x + self._linear(attended.transpose(0, 1).reshape(len(h), -1), name + 'self_attn.out_proj')
            h = self._linear(self._layer_norm(x, name + 'layer_norm2'), name + 'mlp.fc1')
            x = x + self._linear(F.gelu(h, approximate='tanh'), name + 'mlp.fc2')
        return self._linear(self._layer_norm(x, names.VISION + 'post_layernorm'), names.PROJECTOR[:-1])

    @torch.inference_mode()
    def embed(self, ids: Sequence[int]) -> Tensor:
        """Ids -> rows [ids, width]."""
        rows = F.embedding(torch.tensor(ids, device=self.device), self._weights[names.LM_HEAD])
        return rows * torch.tensor(math.sqrt(self.config.width)).to(self.dtype)

    @torch.inference_mode()
    def prefill(self, rows: Tensor, seen: Tensor) -> Cache:
        """Rows [slots, width], of which `seen` are real; every real row sees every other."""
        cache = Cache(seen)
        allowed = seen[:, None] & seen
        self._language(rows, torch.cumsum(seen, 0) - 1, allowed, cache)
        return cache

    @torch.inference_mode()
    def append(self, ids: Sequence[int], cache: Cache) -> Tensor:
        """More causal rows -> logits after the last one, fp32 [vocab]."""
        rows, old = len(ids), cache.seen
        causal = torch.ones(rows, rows, dtype=torch.bool, device=self.device).tril()
        cache.seen = torch.cat([old, causal[0].new_ones(rows)])
        positions = int(old.sum()) + torch.arange(rows, device=self.device)
        hidden = self._language(self.embed(ids), positions, torch.cat([old.expand(rows, -1), causal], 1), cache)
        return F.linear(hidden[-1:], self._weights[names.LM_HEAD])[0].float()

    @torch.inference_mode()
    def denoise(self, noise: Tensor, cache: Cache) -> Tensor:
        """Noise [horizon, action_dim] -> actions."""
        x, dt = noise.to(self.device), -1.0 / len(self.times)
        for time in self.times:
            x = x + dt * self._velocity(x, time, cache)
        return x

    def _velocity(self, x: Tensor, time: float, cache: Cache) -> Tensor:
        c, rows = self.config, len(x)
        cond = time_embedding(torch.tensor([time]), c.expert_width, c.min_period, c.max_period).to(self.device)
        cond = F.silu(self._linear(F.silu(self._linear(cond, 'time_mlp_in')), 'time_mlp_out'))
        allowed = torch.cat([cache.seen, cache.seen.new_ones(rows)]).expand(rows, -1)
        mask = self._additive(allowed)
        cos, sin = self._rope(int(cache.seen.sum()) + torch.arange(rows, device=self.device))
        h = self._linear(x, 'action_in_proj').to(self.dtype)
        for i in range(c.depth):
            name = f'{names.EXPERT}model.layers.{i}.'
            normed, gate = self._adaptive(h, cond, name + 'input_layernorm')
            q, k, v = self._qkv(normed, name, cos, sin)
            k, v = self._join(cache.keys[i], k), self._join(cache.values[i], v)
            h = h + self._linear(self._attend(q, k, v, mask), name + 'self_attn.o_proj') * gate
            normed, gate = self._adaptive(h, cond, name + 'post_attention_layernorm')
            h = h + self._mlp(normed, name) * gate
        return self._linear(self._adaptive(h, cond, names.EXPERT + 'model.norm')[0].float(), 'action_out_proj')

    def _language(self, x: Tensor, positions: Tensor, allowed: Tensor, cache: Cache) -> Tensor:
        mask, (cos, sin) = self._additive(allowed), self._rope(positions)
        for i in range(self.config.depth):
            name = f'{names.LANGUAGE}layers.{i}.'
            q, k, v = self._qkv(self._norm(x, name + 'input_layernorm'), name, cos, sin)
            if i < len(cache.keys):
                cache.keys[i], cache.values[i] = self._join(cache.keys[i], k), self._join(cache.values[i], v)
            else:
                cache.keys.append(k)
                cache.values.append(v)
            x = x + self._linear(self._attend(q, cache.keys[i], cache.values[i], mask), name + 'self_attn.o_proj')
            x = x + self._mlp(self._norm(x, name + 'post_attention_layernorm'), name)
        return self._norm(x, names.LANGUAGE + 'norm')

    def _qkv(self, x: Tensor, name: str, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q [heads, rows, d], k and v [rows, d]; q and k turned to their positions."""
        q, k, v = (self._linear(x, f'{name}self_attn.{part}_proj') for part in 'qkv')
        q = q.view(len(x), self.config.heads, -1).transpose(0, 1)
        return self._turn(q, cos, sin), self._turn(k, cos, sin), v

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        heads, rows, d = q.shape
        k, v = (t.expand(heads, -1, -1).contiguous() for t in (k, v))
        self.copied += k.nbytes + v.nbytes
        weights = torch.softmax(q @ k.transpose(1, 2) * d ** -0.5 + mask, -1, dtype=torch.float32).to(q.dtype)
        return (weights @ v).transpose(0, 1).contiguous().view(rows, -1)

    def _join(self, old: Tensor, new: Tensor) -> Tensor:
        self.copied += old.nbytes
        return torch.cat([old, new])

    def _mlp(self, x: Tensor, name: str) -> Tensor:
        gate = F.gelu(self._linear(x, name + 'mlp.gate_proj'), approximate='tanh')
        return self._linear(gate * self._linear(x, name + 'mlp.up_proj'), name + 'mlp.down_proj')

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self._weights[name + '.weight'], self._weights.get(name + '.bias'))

    def _layer_norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = self._weights[name + '.weight'], self._weights[name + '.bias']
        return F.layer_norm(x.float(), x.shape[-1:], weight, bias, _EPS).to(x.dtype)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return (self._normed(x) * (1 + self._weights[name + '.weight'])).to(x.dtype)

    def _adaptive(self, x: Tensor, cond: Tensor, name: str) -> tuple[Tensor, Tensor]:
        scale, shift, gate = self._linear(cond, name + '.dense').chunk(3, -1)
        return (self._normed(x) * (1 + scale) + shift).to(x.dtype), gate.to(x.dtype)

    @staticmethod
    def _normed(x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + _EPS)

    def _rope(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        d = self.config.head_dim
        angle = positions[:, None] * 1e4 ** -(torch.arange(0, d, 2, device=self.device) / d)
        angle = torch.cat([angle, angle], -1)
        return angle.cos().to(self.dtype), angle.sin().to(self.dtype)

    @staticmethod
    def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        low, high = x.chunk(2, -1)
        return x * cos + torch.cat([-high, low], -1) * sin

    @staticmethod
    def _additive(allowed: Tensor) -> Tensor:
        return torch.where(allowed, 0.0, _NOWHERE)
