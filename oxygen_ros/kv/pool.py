"""The shared cache: all keys and values of all observations and requests, in one preallocated pool.

A *slot* holds the keys and values of one token row in every layer. Prefixes and tails are contiguous runs of slots, so
that attention reads them in place as views: nothing is ever gathered, cloned or concatenated.
"""
from __future__ import annotations

from dataclasses import dataclass

import torch


class PoolFull(RuntimeError):
    """There is no run of so many free slots now."""


@dataclass(eq=False)
class Prefix:
    """The KV of one observation: written once, then only read. Lives as long as somebody holds it.

    Slots [start, start + rows) are the observation. The `scratch` slots before them are the action expert's own rows,
    rewritten by each denoise step: so the expert reads own rows and prefix as one run, and a tail that follows the
    prefix is read with it as one run too (the order of keys does not matter to attention).
    """

    pool: Pool
    start: int
    rows: int
    scratch: int
    holders: int = 1

    def hold(self) -> Prefix:
        """Add a holder."""
        if not self.holders:
            raise RuntimeError('prefix was already released')
        self.holders += 1
        return self

    def release(self) -> None:
        """Remove a holder; the last one frees the slots."""
        if not self.holders:
            raise RuntimeError('prefix was already released')
        self.holders -= 1
        if not self.holders:
            self.pool._give(self.start - self.scratch, self.scratch + self.rows)

    def purge(self) -> bool:
        """See Pool.purge; the scratch rows too, but only the observation's own decide what is returned."""
        self.pool.purge(self.start - self.scratch, self.scratch)
        return self.pool.purge(self.start, self.rows)

    def drop_scratch(self) -> None:
        """Give the expert's rows back: nobody will act on this prefix again."""
        if self.scratch:
            self.pool._give(self.start - self.scratch, self.scratch)
            self.scratch = 0


@dataclass(eq=False)
class Tail:
    """The private KV of one language request: `rows` slots written, out of `capacity`."""

    pool: Pool
    start: int
    capacity: int
    rows: int = 0

    @property
    def end(self) -> int:
        """Slot of the next row."""
        return self.start + self.rows

    def purge(self) -> bool:
        """See Pool.purge."""
        return self.pool.purge(self.start, self.capacity)

    def release(self) -> None:
        """Free the slots."""
        if self.capacity:
            self.pool._give(self.start, self.capacity)
            self.capacity = self.rows = 0


class Pool:
    """Preallocated keys and values, `slots` rows in each of `layers` layers (one KV head, as pi0.5 has).

    k, v: [layers, slots, head_dim]; k is stored after RoPE.
    control: slots that language may never take: after any tail is admitted, one free run of this length remains, so
        that the next observation always has room.
    align: observations start (with their scratch) at multiples of this, so that code with fixed addresses, a CUDA
        graph, meets only a few places; `control` must then leave room for the alignment.
    """

    def __init__(self, layers: int, head_dim: int, slots: int, control: int, dtype: torch.dtype = torch.float32,
                 device: str | torch.device = 'cpu', align: int = 1) -> None:
        if slots < control:
            raise ValueError(f'a pool of {slots} slots cannot keep {control} for control')
        self.align = align
        self.k = torch.zeros(layers, slots, head_dim, dtype=dtype, device=device)
        self.v = torch.zeros_like(self.k)
        self.slots, self.control = slots, control
        self.bytes_per_slot = 2 * layers * head_dim * self.k.element_size()
        self.used = self.peak = 0
        self._holes = [(0, slots)]  # free runs (start, rows), by start, never adjacent

    @property
    def bytes_in_use(self) -> int:
        """Bytes of all slots that are handed out."""
        return self.used * self.bytes_per_slot

    @property
    def bytes_peak(self) -> int:
        """Most bytes that were in use at once."""
        return self.peak * self.bytes_per_slot

    @property
    def bytes_capacity(self) -> int:
        """Bytes of the pool."""
        return self.slots * self.bytes_per_slot

    def prefix(self, rows: int, scratch: int = 0) -> Prefix:
        """Room for one observation, from the low end. Raises PoolFull."""
        need = rows + scratch
        for i, (start, free) in enumerate(self._holes):
            at = -(-start // self.align) * self.align
            if at + need <= start + free:
                self._take(i, at, need)
                return Prefix(self, at + scratch, rows, scratch)
        raise PoolFull(f'no run of {need} free slots for an observation ({self.slots - self.used} of {self.slots} '
                       f'slots are free in all)')

    def tail(self, capacity: int, after: Prefix | None = None) -> Tail:
        """Room for one request that leaves `control` slots in one run. Raises PoolFull.

        Right behind the prefix `after` if that is free, otherwise from the high end.
        """
        behind = after.start + after.rows if after is not None else -1
        for hole in sorted(range(len(self._holes)), key=lambda i: (self._holes[i][0] != behind, -i)):
            start, free = self._holes[hole]
            others = max((f for i, (_, f) in enumerate(self._holes) if i != hole), default=0)
            if free >= capacity and max(free - capacity, others) >= self.control:
                at = start if start == behind else start + free - capacity
                self._take(hole, at, capacity)
                return Tail(self, at, capacity)
        raise PoolFull(f'no run of {capacity} free slots for a request beside the {self.control} kept for control')

    def purge(self, start: int, rows: int) -> bool:
        """Put 0 for what is not finite in these slots; whether everything was.

        A pass of fixed shape multiplies what it does not see by 0, and 0 times NaN is NaN.
        """
        finite = True
        for cache in (self.k, self.v):
            run = cache[:, start:start + rows]
            finite &= bool(run.isfinite().all())
            run.nan_to_num_(0.0, 0.0, 0.0)
        return finite

    def _take(self, hole: int, at: int, rows: int) -> None:
        """Take a run out of a hole; what is left before and behind it stays free."""
        start, free = self._holes[hole]
        left = [(start, at - start), (at + rows, start + free - at - rows)]
        self._holes[hole:hole + 1] = [run for run in left if run[1]]
        self.used += rows
        self.peak = max(self.peak, self.used)

    def _give(self, start: int, rows: int) -> None:
        """Put a run back and join it with its free neighbours."""
        self.used -= rows
        i = next((i for i, (s, _) in enumerate(self._holes) if s > start), len(self._holes))
        if i < len(self._holes) and start + rows == self._holes[i][0]:
            rows += self._holes.pop(i)[1]
        if i and sum(self._holes[i - 1]) == start:
            start, before = self._holes[i - 1][0], self._holes[i - 1][1]
            self._holes[i - 1] = (start, before + rows)
        else:
            self._holes.insert(i, (start, rows))
