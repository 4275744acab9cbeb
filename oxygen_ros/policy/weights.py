"""The tensors of one ``model.safetensors``, under their public names, read one at a time."""
from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import safetensors
import torch
from torch import Tensor

from oxygen_ros.model.names import EMBED_TOKENS, EXPERT_LM_HEAD, LM_HEAD, Shape
from oxygen_ros.policy.errors import CheckpointError

_DTYPES = {'F64': torch.float64, 'F32': torch.float32, 'F16': torch.float16, 'BF16': torch.bfloat16}
_COPY = 'the file was cut or damaged: copy it again'
_COMPARE = 1 << 24   # bytes


class _Entry(NamedTuple):
    dtype: str
    shape: Shape
    start: int   # in the file
    size: int    # bytes


class Weights:
    """One safetensors file, read one tensor at a time into memory of its own.

    Not memory-mapped: mapped pages count as resident, and a file that is replaced under a running robot would crash
    it. ``shapes`` maps public names to shapes; names are brought to the public ones by these rules: a ``model.``
    prefix goes, ``action_time_mlp_*`` is ``time_mlp_*`` (early LeRobot), ``state_proj`` (pi0) and the expert's
    vocabulary are never read, an ``embed_tokens`` equal to ``lm_head`` goes, and either of the two stands for both.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: dict[str, _Entry] = {}
        for name, entry in _header(path).items():
            public = _public(name)
            if public is None:
                continue
            if entry.dtype not in _DTYPES:
                raise CheckpointError(f'{path}: {name} is of type {entry.dtype}; quantised checkpoints are not read: '
                                      'use the one in float32 or bfloat16')
            if public in self._entries:
                raise CheckpointError(f'{path}: {public} is there twice, once as {name}; remove one of them')
            self._entries[public] = entry
        self._tie()
        self.shapes: dict[str, Shape] = {name: entry.shape for name, entry in self._entries.items()}

    def get(self, name: str) -> Tensor:
        """The tensor on the CPU, in the file's dtype. KeyError if absent, CheckpointError if not finite."""
        entry = self._entries[name]
        tensor = torch.empty(entry.shape, dtype=_DTYPES[entry.dtype])
        if not entry.size:
            return tensor
        with open(self.path, 'rb') as file:
            file.seek(entry.start)
            read = file.readinto(memoryview(tensor.view(-1).view(torch.uint8).numpy().data))
        if read != entry.size:
            raise CheckpointError(f'{self.path}: {name} ends early; {_COPY}')
        if not all(bound.isfinite() for bound in tensor.aminmax()):   # no temporary, unlike isfinite()
            raise CheckpointError(f'{self.path}: {name} holds values that are not finite; the file is damaged or the '
                                  'training diverged: take an earlier checkpoint')
        return tensor

    def _tie(self) -> None:
        head, embed = self._entries.get(LM_HEAD), self._entries.get(EMBED_TOKENS)
        if embed and not head:
            self._entries[LM_HEAD] = self._entries.pop(EMBED_TOKENS)
        elif embed and head and embed[:2] == head[:2] and self._same_bytes(embed.start, head.start, head.size):
            del self._entries[EMBED_TOKENS]

    def _same_bytes(self, a: int, b: int, size: int) -> bool:
        with open(self.path, 'rb') as first, open(self.path, 'rb') as second:
            first.seek(a)
            second.seek(b)
            return all(first.read(n) == second.read(n)
                       for n in (min(_COMPARE, size - done) for done in range(0, size, _COMPARE)))


def _header(path: Path) -> dict[str, _Entry]:
    """Every tensor of the file, by the file's own names."""
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
    data = 8 + length
    return {name: _Entry(entry['dtype'], tuple(entry['shape']), data + begin, end - begin)
            for name, entry in header.items() for begin, end in (entry['data_offsets'],)}


def _public(name: str) -> str | None:
    """The public name, or None for a tensor that inference never reads."""
    name = name.removeprefix('model.')
    name = re.sub(r'^action_time_mlp_(in|out)\.', r'time_mlp_\1.', name)
    return None if name == EXPERT_LM_HEAD or name.startswith('state_proj.') else name
