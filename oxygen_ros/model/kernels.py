"""Our own kernels for the CPU in fp32 (src/kernels): what torch lacks for few rows.

torch's products of 2 to 16 rows stream weights at a third of the memory's speed, and a decode step of a few ms cannot
afford a hundred small operations. In these kernels each sum is one chain in a fixed order, so a row has the same bits
however many rows share the call: a text does not depend on its company at all, nor a chunk on what rides with it.

One source, a library per instruction set of x86-64. They bring no OpenMP runtime but find torch's, which is in the
process already: one pool of threads, as many as torch.set_num_threads says. Without a library torch does the same work.
"""
from __future__ import annotations

import ctypes
import mmap
import platform
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import oxygen_ros

PANEL = 16  # as kPanel in tile.hpp
_VERSION = 1  # as kVersion in kernels.hpp
_LEVELS = {'AVX512': '-v4', 'AVX2': '-v3'}
_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64


class _Weights(ctypes.Structure):
    _fields_ = [('packed', _POINTER), ('scales', _POINTER)]


_SIGNATURES = {
    'product': (_POINTER, _INT, _INT, _Weights, _INT, _INT, _POINTER, _INT, _POINTER),
    'attend': (_POINTER, _INT, _INT, _INT, _INT, _POINTER, _POINTER, _POINTER, _POINTER),
    'rms': (_POINTER, _INT, _INT, ctypes.c_float, _POINTER, _POINTER, _POINTER),
    'rotate': (_POINTER, _INT, _INT, _INT, _INT, _POINTER, _POINTER, _POINTER),
    'gelu': (_POINTER, _POINTER, _INT, _INT, _INT, _POINTER),
    'decode': (_POINTER, _POINTER, _INT, _POINTER, _POINTER, _INT, _POINTER, _POINTER, _POINTER, _POINTER),
}


def load() -> tuple[Any, str]:
    """The library for this processor; or None, and why."""
    capability = torch.backends.cpu.get_cpu_capability()
    if platform.machine() != 'x86_64' or capability not in _LEVELS:
        return None, f'there are none for this processor ({platform.machine()}, {capability})'
    name = f'oxygen_kernels{_LEVELS[capability]}.so'
    path = next((path for folder in oxygen_ros.__path__ if (path := Path(folder, name)).is_file()), None)
    if path is None:
        return None, f'{name} is missing: build the package again ("pip install ." or colcon)'
    try:
        library = ctypes.CDLL(str(path))
        if library.oxygen_version() != _VERSION:
            raise AttributeError(f'{path} is of another version')
        for function, arguments in _SIGNATURES.items():
            getattr(library, f'oxygen_{function}').argtypes = arguments
            getattr(library, f'oxygen_{function}').restype = None
    except (OSError, AttributeError) as error:  # no library, or one of an older version
        return None, f'{error}: build the package again ("pip install ." or colcon)'
    return library, ''


library, why_not = load()


def usable(tensor: Tensor) -> bool:
    """Whether the kernels can take tensors of this kind."""
    return library is not None and tensor.is_cpu and tensor.dtype == torch.float32


@torch.inference_mode()  # as whoever took the room first, and normal tensors may be written in it too
def pack(weight: Tensor) -> Tensor:
    """Weights [out, in] -> [panels, in, PANEL], filled up with zeros."""
    filled = F.pad(weight, (0, 0, 0, -weight.shape[0] % PANEL))
    panels = filled.view(-1, PANEL, weight.shape[1]).transpose(1, 2)
    return _room.take(panels.numel()).view(panels.shape).copy_(panels)


class Quantised(NamedTuple):
    """Packed weights in int8, [panels, in, PANEL], each output with a scale of its own: fp32 [panels * PANEL]."""

    packed: Tensor
    scales: Tensor


Kept = Tensor | Quantised   # the packed weights of a product


@torch.inference_mode()
def quantise(packed: Tensor) -> Quantised:
    """Packed weights to the nearest of 255 levels, symmetric about 0, by output."""
    scales = packed.abs().amax(1).clamp(min=torch.finfo().tiny) / 127
    small = _room.take(-(-packed.numel() // 4)).view(torch.int8)[:packed.numel()].view(packed.shape)
    for panel, scale, whole in zip(small, scales, packed, strict=True):  # one at a time: no second copy in fp32
        panel.copy_(torch.round(whole / scale))
    return Quantised(small, scales.flatten())


class _HugePages:
    """Memory for weights in pages of 2 MiB: looking up 4 KiB pages costs a decode step 5-10 %."""

    def __init__(self) -> None:
        self._left = torch.empty(0)

    def take(self, floats: int) -> Tensor:
        """fp32 [floats], not initialised; it goes back when the last tensor of its mapping is gone."""
        if floats > len(self._left):
            size = max(4 * floats, 1 << 25) + (1 << 21)  # what is not touched costs nothing
            memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            with suppress(OSError):  # a kernel without them
                memory.madvise(mmap.MADV_HUGEPAGE)
            self._left = torch.frombuffer(memory, dtype=torch.float32)
            self._left = self._left[-self._left.data_ptr() % (1 << 21) // 4:]
        taken, self._left = self._left.split([floats, len(self._left) - floats])
        return taken


_room = _HugePages()


def unpack(packed: Tensor, rows: Tensor) -> Tensor:
    """Some rows of packed weights, as they were: [len(rows), in]."""
    return packed[rows // PANEL, :, rows % PANEL]


def product(x: Tensor, weights: Kept, out: int, add: Tensor | None = None) -> Tensor:
    """x W^T [+ add] for x [rows, in] and packed weights; add: [out] or [rows, out]."""
    x = _whole_rows(x)
    rows, width = x.shape
    packed = weights if isinstance(weights, Tensor) else weights.packed
    if width != packed.shape[1] or not 0 <= packed.shape[0] * PANEL - out < PANEL:
        raise ValueError(f'rows of {width} and {out} outputs do not fit packed weights {list(packed.shape)}')
    y = x.new_empty(rows, out)
    if add is not None:
        add = _whole_rows(add.expand(rows, out))
    library.oxygen_product(x.data_ptr(), rows, x.stride(0), _address(weights), width, out,
                           None if add is None else add.data_ptr(), 0 if add is None else add.stride(0), y.data_ptr())
    return y


def attend(q: Tensor, k: Tensor, v: Tensor, places: Tensor) -> Tensor:
    """q [rows, heads, d] over slots of k, v [slots, d] -> [rows, heads * d]; d is a multiple of PANEL.

    places: int64 [rows, 6], as `places` in segments.py gives them: the slots that each row sees.
    """
    rows, heads, d = q.shape
    if q.stride(2) != 1 or q.stride(1) != d:
        q = q.contiguous()
    if d % PANEL or not (k.is_contiguous() and v.is_contiguous()):
        raise ValueError(f'keys and values of {d} must be contiguous rows of whole panels')
    out = q.new_empty(rows, heads * d)
    library.oxygen_attend(q.data_ptr(), rows, q.stride(0), heads, d, k.data_ptr(), v.data_ptr(),
                          _table(places, rows, len(k)), out.data_ptr())
    return out


def rms(x: Tensor, eps: float, weight: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
    """x / rms(x) [* weight] [+ shift] over the last axis."""
    x = x.contiguous()
    y = torch.empty_like(x)
    width = x.shape[-1]
    library.oxygen_rms(x.data_ptr(), x.numel() // width, width, eps, _row(weight, width), _row(shift, width),
                       y.data_ptr())
    return y


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate x [rows, heads, d] in place by cos and sin [rows, 1, d / 2]."""
    rows, heads, d = x.shape
    if x.stride(2) != 1 or x.stride(1) != d or not (cos.is_contiguous() and sin.is_contiguous()) \
            or cos.numel() != rows * d // 2 or sin.numel() != cos.numel():
        raise ValueError('heads must lie side by side, with a rotation for each row')
    library.oxygen_rotate(x.data_ptr(), rows, x.stride(0), heads, d, cos.data_ptr(), sin.data_ptr(), None)
    return x


def gelu(x: Tensor, times: Tensor | None = None) -> Tensor:
    """gelu_tanh(x) [* times] for [rows, width], whose rows lie equally far apart in both."""
    rows, width = x.shape
    if x.stride(1) != 1 or times is not None and (times.shape != x.shape or times.stride() != x.stride()):
        raise ValueError('both must be rows of the same shape and place')
    y = x.new_empty(rows, width)
    library.oxygen_gelu(x.data_ptr(), None if times is None else times.data_ptr(), rows, x.stride(0), width,
                        y.data_ptr())
    return y


class Decode:
    """A decode step of a language model in one call, for causal rows that all go on through every layer.

    layers: of each one its two norms [width] and its products qkv, out, gate_up, down.
    """

    def __init__(self, layers: Sequence[tuple[Sequence[Tensor], Sequence[Kept]]], norm: Tensor, head: Kept, heads: int,
                 dim: int, mlp: int, vocab: int, eps: float) -> None:
        self._kept = layers, norm, head
        addresses = (_Layer * len(layers))(*(
            _Layer(*(norm.data_ptr() for norm in norms), *map(_address, products)) for norms, products in layers))
        self._model = _Model(addresses, norm.data_ptr(), _address(head), len(layers), len(norm), heads, dim, mlp,
                             vocab, eps)

    def __call__(self, x: Tensor, k: Tensor, v: Tensor, cos: Tensor, sin: Tensor, places: Tensor) -> Tensor:
        """x [rows, width] over k, v [layers, slots, dim] -> logits [rows, vocab]; writes the rows' keys and values.

        cos, sin: [positions, dim / 2]. places: as in `attend`.
        """
        x = x.contiguous()
        if x.shape[1] != self._model.width or not (k.is_contiguous() and k.shape == v.shape and v.is_contiguous()):
            raise ValueError(f'rows of {list(x.shape)} and a pool of {list(k.shape)} do not fit the model')
        logits = x.new_empty(len(x), self._model.vocab)
        library.oxygen_decode(ctypes.byref(self._model), x.data_ptr(), len(x), k.data_ptr(), v.data_ptr(), k.stride(0),
                              cos.data_ptr(), sin.data_ptr(), _table(places, len(x), k.shape[1], len(cos)),
                              logits.data_ptr())
        return logits


class _Layer(ctypes.Structure):
    _fields_ = [*((name, _POINTER) for name in ('norm1', 'norm2')),
                *((name, _Weights) for name in ('qkv', 'out', 'gate_up', 'down'))]


class _Model(ctypes.Structure):
    _fields_ = [('layers', ctypes.POINTER(_Layer)), ('norm', _POINTER), ('head', _Weights),
                *((name, _INT) for name in ('depth', 'width', 'heads', 'dim', 'mlp', 'vocab')), ('eps', ctypes.c_float)]


def _table(places: Tensor, rows: int, slots: int, positions: int | None = None) -> int:
    """The address of the places, none of which lies outside."""
    if places.shape != (rows, 6) or places.dtype != torch.long or not places.is_contiguous():
        raise ValueError(f'{rows} rows need as many places')
    position, slot, *ends = places.amax(0).tolist()
    if max(slot + 1, *ends) > slots or positions is not None and position >= positions:
        raise ValueError(f'position {position}, slot {slot} or slots before {max(ends)} do not fit into {positions} '
                         f'positions and {slots} slots')
    return places.data_ptr()


def _address(weights: Kept) -> _Weights:
    if isinstance(weights, Tensor):
        return _Weights(weights.data_ptr(), None)
    return _Weights(weights.packed.data_ptr(), weights.scales.data_ptr())


def _whole_rows(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _row(x: Tensor | None, width: int) -> int | None:
    if x is None:
        return None
    if x.shape != (width,) or x.stride(0) != 1:
        raise ValueError(f'{list(x.shape)} is not a row of {width}')
    return x.data_ptr()
