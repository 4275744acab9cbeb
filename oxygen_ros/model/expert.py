"""The action expert: flow matching from noise to a chunk of actions, reading a prefix in place.

What depends only on the time schedule (time embedding, every adaRMS scale, shift and gate) is tabulated once.
"""
from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from oxygen_ros.kv import Pool, Prefix
from oxygen_ros.model import names
from oxygen_ros.model.config import ModelConfig
from oxygen_ros.model.layers import Linear, Rope, attend, geglu, rms

_BODY = names.EXPERT + 'model.'


def times(steps: int, schedule: str) -> list[float]:
    """The fp32 times of the denoise steps, from 1 down in steps of 1 / steps, as each reference computes them."""
    dt = torch.tensor(-1.0 / steps, dtype=torch.float32)
    if schedule == 'indexed':
        return [float(torch.tensor(1.0 + i * (-1.0 / steps), dtype=torch.float32)) for i in range(steps)]
    out, t = [], torch.tensor(1.0, dtype=torch.float32)
    for _ in range(steps):
        out.append(float(t))
        t = t + dt
    return out


def time_embedding(t: Tensor, width: int, min_period: float, max_period: float) -> Tensor:
    """fp32 times [n] -> fp32 [n, width]: sin then cos at log-spaced periods, angles in float64."""
    fraction = torch.linspace(0.0, 1.0, width // 2, dtype=torch.float64)
    period = min_period * (max_period / min_period) ** fraction
    angle = t.double()[:, None] * (2 * math.pi / period)
    return torch.cat([angle.sin(), angle.cos()], dim=-1).float()


class Expert:
    """Noise [horizon, action_dim] -> actions of the same shape, in normalised units, fp32.

    get: returns a public tensor on the CPU in fp32; `put` moves a finished weight to the device in the model's dtype.
    """

    def __init__(self, config: ModelConfig, get: Callable[[str], Tensor], put: Callable[[Tensor], Tensor],
                 rope: Rope, steps: int) -> None:
        self.config, self.rope, self.steps = config, rope, steps
        device = put(torch.zeros(1)).device

        def exact(name: str) -> Linear:  # these stay fp32 whatever the model's dtype
            return Linear(get(name + '.weight').float().to(device), get(name + '.bias').float().to(device))

        self.action_in, self.action_out = exact('action_in_proj'), exact('action_out_proj')
        self.blocks = [_Block(config, _BODY + f'layers.{i}.', get, put) for i in range(config.depth)]
        self.times = times(steps, config.schedule)
        self.table = self._tabulate(get).to(device)  # [steps, norms, 3, width]: 1 + scale, shift, gate

    def _tabulate(self, get: Callable[[str], Tensor]) -> Tensor:
        c = self.config

        def linear(name: str, x: Tensor) -> Tensor:
            return F.linear(x, get(name + '.weight').float(), get(name + '.bias').float())

        t = torch.tensor(self.times, dtype=torch.float32)
        cond = time_embedding(t, c.expert_width, c.min_period, c.max_period)
        cond = F.silu(linear('time_mlp_out', F.silu(linear('time_mlp_in', cond))))
        norms = [_BODY + f'layers.{i}.{norm}.dense' for i in range(c.depth)
                 for norm in ('input_layernorm', 'post_attention_layernorm')]
        table = torch.stack([linear(name, cond) for name in [*norms, _BODY + 'norm.dense']], dim=1)
        table = table.view(self.steps, len(norms) + 1, 3, c.expert_width)
        table[:, :, 0] += 1
        return table

    def __call__(self, noise: Tensor, prefix: Prefix, pool: Pool, committed: Tensor | None = None) -> Tensor:
        """Integrate from noise; writes only the prefix's scratch rows. committed: as in `integrate`."""
        horizon = noise.shape[0]
        if prefix.scratch < horizon:
            raise ValueError(f'the prefix keeps {prefix.scratch} scratch rows, the chunk needs {horizon}')
        cos, sin = self.rope.at(torch.arange(prefix.rows, prefix.rows + horizon, device=noise.device))
        run = slice(prefix.start - horizon, prefix.start + prefix.rows)  # own rows, then the prefix
        return self.integrate(noise, cos, sin, pool.k[:, run], pool.v[:, run], committed=committed)

    def integrate(self, noise: Tensor, cos: Tensor, sin: Tensor, k: Tensor, v: Tensor,
                  seen: Tensor | None = None, committed: Tensor | None = None) -> Tensor:
        """From noise to actions over k, v [layers, keys, head_dim], whose first `horizon` rows are the expert's own.

        seen: bool [keys], which of them count; None = all.
        committed: [horizon, action_dim], NaN where the chunk is free. Elsewhere the chunk is held on the straight path
            from its noise to these values, so that the free actions are denoised as their continuation: real-time
            chunking (arXiv 2506.07339) with a hard mask and without its backward pass.
        """
        x, dt, dtype = noise, -1.0 / self.steps, k.dtype
        for t, step in zip(self.times, self.table, strict=True):
            if committed is not None:
                x = torch.where(committed.isnan(), x, t * noise + (1 - t) * committed)
            h = self.action_in(x).to(dtype)
            for i, block in enumerate(self.blocks):
                h = block(h, step[2 * i], step[2 * i + 1], cos, sin, k[i], v[i], seen)
            velocity = self.action_out(_modulate(h, step[-1]).float())
            x = x + dt * velocity
        return x if committed is None else torch.where(committed.isnan(), x, committed)


def _modulate(h: Tensor, modulation: Tensor) -> Tensor:
    """AdaRMS: rms(h) * (1 + scale) + shift, in fp32, cast back."""
    return rms(h, modulation[0], modulation[1]).to(h.dtype)


class _Block:
    def __init__(self, config: ModelConfig, name: str, get: Callable[[str], Tensor],
                 put: Callable[[Tensor], Tensor]) -> None:
        self.heads, self.head_dim = config.heads, config.head_dim
        self.qkv = Linear(put(torch.cat([get(name + f'self_attn.{part}_proj.weight') for part in 'qkv'])))
        self.out = Linear(put(get(name + 'self_attn.o_proj.weight')))
        self.gate_up = Linear(put(torch.cat([get(name + f'mlp.{part}_proj.weight') for part in ('gate', 'up')])))
        self.down = Linear(put(get(name + 'mlp.down_proj.weight')))

    def __call__(self, h: Tensor, mod1: Tensor, mod2: Tensor, cos: Tensor, sin: Tensor, k: Tensor, v: Tensor,
                 seen: Tensor | None) -> Tensor:
        rows = h.shape[0]
        qkv = self.qkv(_modulate(h, mod1)).view(rows, self.heads + 2, self.head_dim)
        qk = Rope.rotate(qkv[:, :-1], cos, sin)
        k[:rows] = qk[:, -1]
        v[:rows] = qkv[:, -1]
        h = torch.addcmul(h, self.out(attend(qk[:, :-1], k, v, seen)), mod1[2].to(h.dtype))
        return torch.addcmul(h, self.down(geglu(self.gate_up(_modulate(h, mod2)))), mod2[2].to(h.dtype))
