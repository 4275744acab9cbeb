"""The few operations that all three networks share, in the numerics of the reference."""
from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

# Above this many rows the packed product of oneDNN is no faster than the plain one (and with a single row neither);
# measured on AVX2 in fp32: 1.6-2x faster from 2 to 16 rows.
_PACKED_ROWS = range(2, 33)
EPS = 1e-6
_TWO_C = torch.tensor(2 * math.sqrt(2 / math.pi))


class Linear:
    """y = x W^T + b, with a second, packed copy of W for few rows on the CPU in fp32 where torch offers one."""

    def __init__(self, weight: Tensor, bias: Tensor | None = None, pack: bool = False) -> None:
        self.weight, self.bias = weight.contiguous(), bias
        self._packed = None
        if pack and weight.device.type == 'cpu' and weight.dtype == torch.float32 \
                and torch.backends.mkldnn.is_available():
            self._packed = torch.ops.mkldnn._reorder_linear_weight(self.weight, 8)

    def warm_up(self) -> None:
        """Have oneDNN make its kernel for every number of rows now: each is kept, and making one takes milliseconds."""
        if self._packed is not None:
            for rows in _PACKED_ROWS:
                self(self.weight.new_zeros(rows, self.weight.shape[1]))

    def __call__(self, x: Tensor) -> Tensor:
        if self._packed is not None and x.shape[0] in _PACKED_ROWS:
            return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, 'none', [], '')
        return F.linear(x, self.weight, self.bias)


def rms(x: Tensor, weight: Tensor | None = None) -> Tensor:
    """x / rms(x) in fp32, times `weight` if given: [..., width] -> fp32 [..., width].

    On the CPU from its parts, which takes half the time of torch's composite for few rows.
    """
    x = x.float()
    if x.device.type != 'cpu':
        return F.rms_norm(x, x.shape[-1:], weight, EPS)
    out = x * x.square().mean(-1, keepdim=True).add_(EPS).rsqrt_()
    return out if weight is None else out.mul_(weight)


def gelu_tanh(x: Tensor) -> Tensor:
    """gelu with the tanh approximation, as a new tensor.

    On the CPU in fp32 as x * sigmoid(2z), which equals x/2 (1 + tanh z) and takes half the time of torch's tanh.
    """
    if x.device.type != 'cpu' or x.dtype != torch.float32:
        return F.gelu(x, approximate='tanh')
    return torch.addcmul(_TWO_C, x, x, value=float(_TWO_C) * 0.044715).mul_(x).sigmoid_().mul_(x)


def geglu(gate_up: Tensor) -> Tensor:
    """gelu_tanh(gate) * up for [rows, 2 * mlp] -> [rows, mlp]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return gelu_tanh(gate).mul_(up)


class Rope:
    """Rotary positions over the full head, halves split (theta 1e4). Tables are made in fp32, kept in `dtype`."""

    def __init__(self, head_dim: int, positions: int, dtype: torch.dtype, device: torch.device) -> None:
        frequency = 1e4 ** -(torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        angle = torch.arange(positions, dtype=torch.float32)[:, None] * frequency
        self.cos = angle.cos().to(device, dtype)
        self.sin = angle.sin().to(device, dtype)

    def at(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin for these positions: two [rows, 1, head_dim / 2]."""
        return self.cos[positions, None], self.sin[positions, None]

    @staticmethod
    def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate [rows, heads, head_dim]."""
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
