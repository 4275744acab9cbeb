"""The few operations that all three networks share, in the numerics of the reference."""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from oxygen_ros.model import kernels

EPS = 1e-6


class Linear:
    """y = x W^T + b. The weights are kept in one order only: packed, where our own kernels are usable."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self.out, self.bias = weight.shape[0], bias
        self._packed = kernels.usable(weight)
        self.weight = kernels.pack(weight) if self._packed else weight.contiguous()

    def __call__(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """x: [rows, in]. add: what the product is added to [rows, out], in place of a bias."""
        if self._packed:
            return kernels.product(x, self.weight, self.out, self.bias if add is None else add)
        y = F.linear(x, self.weight, self.bias)
        return y if add is None else y.add_(add)

    def rows(self, ids: Tensor) -> Tensor:
        """The weights of these outputs: [len(ids), in]."""
        return kernels.unpack(self.weight, ids) if self._packed else F.embedding(ids, self.weight)


def rms(x: Tensor, weight: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
    """x / rms(x) in fp32, times `weight`, plus `shift` [width] if given: [..., width] -> fp32 [..., width]."""
    if kernels.usable(x):
        return kernels.rms(x, EPS, weight, shift)
    y = F.rms_norm(x.float(), x.shape[-1:], weight, EPS)
    return y if shift is None else y.add_(shift)


def gelu_tanh(x: Tensor, times: Tensor | None = None) -> Tensor:
    """gelu of x [rows, width] with the tanh approximation, times `times` if given."""
    if kernels.usable(x):
        return kernels.gelu(x, times)
    y = F.gelu(x, approximate='tanh')
    return y if times is None else y.mul_(times)


def geglu(gate_up: Tensor) -> Tensor:
    """gelu_tanh(gate) * up for [rows, 2 * mlp] -> [rows, mlp]."""
    return gelu_tanh(*gate_up.chunk(2, dim=-1))


class Rope:
    """Rotary positions over the full head, halves split (theta 1e4). Tables are made in fp32, kept in `dtype`."""

    def __init__(self, head_dim: int, positions: int, dtype: torch.dtype, device: torch.device) -> None:
        self.head_dim = head_dim
        frequency = 1e4 ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        angle = torch.arange(positions, dtype=torch.float32)[:, None] * frequency
        self.cos = angle.cos().to(device, dtype)
        self.sin = angle.sin().to(device, dtype)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin for these positions: two [rows, 1, head_dim / 2]."""
        return self.cos[positions, None], self.sin[positions, None]

    @staticmethod
    def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate [rows, heads, head_dim], in place where that is quicker."""
        if kernels.usable(x):
            return kernels.rotate(x, cos, sin)
        a, b = x.chunk(2, dim=-1)
        out = torch.empty_like(x)
        low, high = out.chunk(2, dim=-1)
        torch.mul(a, cos, out=low).addcmul_(b, sin, value=-1)
        torch.mul(b, cos, out=high).addcmul_(a, sin)
        return out


def attend(q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None = None) -> Tensor:
    """Every query row sees every key (or those that `seen` [keys] marks): q [rows, heads, d], k and v [keys, d] ->
    [rows, heads * d].

    The heads of one KV head are folded into rows: one product, no expansion of K and V, no mask where none is needed.
    """
    mask = None if seen is None else seen[None]
    out = F.scaled_dot_product_attention(q.reshape(1, 1, -1, q.shape[-1]), k[None, None], v[None, None], mask)
    return out.view(q.shape[0], -1)
