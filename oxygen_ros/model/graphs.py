"""The same network in fixed shapes at fixed addresses, so that CUDA can replay whole passes as graphs.

On a GPU the many small launches of a denoise loop or a decode step take longer than their work; a graph launches them
as one. A graph's addresses are fixed, but observations and requests come and go in the pool. So

- a decode step attends over the whole pool in one product, with a mask that marks each row's own runs (reading the
  pool once costs far less than the weights, and no key or value is gathered);
- a chunk is denoised in the window of `pool.align` slots where its prefix lies, one graph per window;
- the rows of a decode step are padded to a power of two with copies of its first row, which write what it writes.

Nothing but capturing depends on CUDA: without `capture` the same functions run as they are.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from oxygen_ros.kv import Pool, Prefix
from oxygen_ros.model.expert import Expert
from oxygen_ros.model.language import Language
from oxygen_ros.model.layers import Rope
from oxygen_ros.model.segments import Segment, places
from oxygen_ros.model.vision import Vision

_MOST_ROWS = 64  # a power of two; a decode step with more rows runs as a ragged pass


class Replay:
    """A function over fixed buffers. Captured after two plain calls with the buffers' present, real content."""

    def __init__(self, function: Callable[[], Tensor], capture: bool) -> None:
        self._function, self._graph = function, None
        if capture:
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(2):
                    function()
            torch.cuda.current_stream().wait_stream(side)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._result = function()

    def __call__(self) -> Tensor:
        """The result lies in a fixed buffer: it is good until the next call."""
        if self._graph is None:
            return self._function()
        self._graph.replay()
        return self._result


class StaticPlan:
    """A pass of `rows` rows whose places are data: the counterpart of RaggedPlan for decode steps.

    table: int64 [rows, 6], as `places` gives them.
    """

    kept: Tensor | None = None

    def __init__(self, rows: int, pool: Pool) -> None:
        self.rows = self.outputs = rows
        self.table = torch.zeros(rows, 6, dtype=torch.long, device=pool.k.device)
        self._every_slot = torch.arange(pool.k.shape[1], device=pool.k.device)

    def place(self, segments: Sequence[Segment]) -> None:
        """Fill the table from segments of causal rows; the rows beyond theirs repeat the first one."""
        table = [place for s in segments for place in places(s)]
        table += table[:1] * (self.rows - len(table))
        self.table.copy_(torch.tensor(table), non_blocking=True)

    def bind(self, rope: Rope) -> None:
        """Derive what the layers need from the table."""
        self.cos, self.sin = rope.at(self.table[:, 0])
        self.slots = self.table[:, 1]
        slot, (a, b, c, d) = self._every_slot, self.table[:, 2:, None].unbind(1)
        self._unseen = ~(((slot >= a) & (slot < b)) | ((slot >= c) & (slot < d)))[:, None]  # [rows, 1, slots]

    def attend(self, q: Tensor, k: Tensor, v: Tensor, last: bool) -> Tensor:
        """q [rows, heads, d] over the whole pool k, v [slots, d] -> [rows, heads * d]."""
        rows, heads, d = q.shape
        scores = (q.reshape(-1, d) * d ** -0.5 @ k.T).view(rows, heads, -1).masked_fill(self._unseen, -torch.inf)
        weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        return (weights.view(rows * heads, -1) @ v).view(rows, heads * d)


class Graphs:
    """Fixed-shape passes over one pool, each made when first needed; ``make_all`` needs them before a robot moves."""

    def __init__(self, vision: Vision, language: Language, expert: Expert, pool: Pool, capture: bool) -> None:
        self.vision, self.language, self.expert, self.pool = vision, language, expert, pool
        self._capture = capture
        self._vision: dict[int, tuple[Tensor, Replay]] = {}
        self._decode: dict[int, tuple[Tensor, StaticPlan, Replay]] = {}
        self._denoise: dict[int, Replay] = {}
        c, device = expert.config, pool.k.device
        self._noise = torch.zeros(c.horizon, c.action_dim, device=device)
        self._committed = torch.zeros_like(self._noise)
        self._positions = torch.zeros(c.horizon, dtype=torch.long, device=device)
        self._seen = torch.zeros(pool.align, dtype=torch.bool, device=device)

    @torch.inference_mode()
    def make_all(self, cameras: int) -> None:
        """Make every pass that a cycle may need, while nothing is in the pool: capturing one takes seconds."""
        c, device = self.expert.config, self.pool.k.device
        for count in range(1, cameras + 1):
            self.encode(torch.zeros(count, 3, c.image, c.image, device=device))
        rows = 1
        while rows <= _MOST_ROWS:
            segment = Segment(rows, 0, 0, outputs=rows)
            self.decode(self.language.embed(torch.zeros(rows, dtype=torch.long, device=device)), [segment])
            rows *= 2
        self._seen.fill_(True)  # of a row that sees nothing some attention makes NaN, and that would stay in the pool
        for home in range(0, self.pool.k.shape[1], self.pool.align):
            self._make_denoise(home)

    def encode(self, images: Tensor) -> Tensor:
        """As Vision."""
        if len(images) not in self._vision:
            buffer = images.clone()
            self._vision[len(images)] = buffer, Replay(lambda: self.vision(buffer), self._capture)
        buffer, replay = self._vision[len(images)]
        buffer.copy_(images)
        return replay().clone()  # image rows are kept while the image's stamp stays

    def fits(self, segments: Sequence[Segment], pool: Pool) -> bool:
        """Whether this pass is a decode step: few rows, each segment the tail of a request."""
        return (pool is self.pool and sum(s.rows for s in segments) <= _MOST_ROWS
                and all(s.causal and s.outputs for s in segments))

    def decode(self, x: Tensor, segments: Sequence[Segment]) -> Tensor:
        """As Pi05.forward, for segments that `fits` takes."""
        bucket = 1 << (len(x) - 1).bit_length()
        if bucket not in self._decode:
            self._decode[bucket] = self._make_decode(bucket, x, segments)
        buffer, plan, replay = self._decode[bucket]
        _fill(buffer, x)
        plan.place(segments)
        logits, row = replay(), 0
        outputs: list[int] = []
        for s in segments:
            row += s.rows
            outputs += range(row - s.outputs, row)
        if len(outputs) == len(x):
            return logits[:len(x)]
        return logits.index_select(0, torch.tensor(outputs).to(x.device, non_blocking=True))

    def _make_decode(self, rows: int, x: Tensor, segments: Sequence[Segment]) -> tuple[Tensor, StaticPlan, Replay]:
        buffer, plan = x.new_empty(rows, x.shape[1]), StaticPlan(rows, self.pool)
        _fill(buffer, x)
        plan.place(segments)  # capturing runs the pass: it must write where this pass may write

        def run() -> Tensor:
            plan.bind(self.language.rope)
            return self.language.logits(self.language.run(buffer, plan, self.pool))

        return buffer, plan, Replay(run, self._capture)

    def denoise(self, noise: Tensor, prefix: Prefix, pool: Pool, committed: Tensor | None = None) -> Tensor:
        """As Expert."""
        horizon, home = len(noise), prefix.start - prefix.scratch
        if prefix.scratch != horizon or home % pool.align:
            raise ValueError(f'the prefix has {prefix.scratch} scratch rows at slot {home}: {horizon} are needed at a '
                             f'multiple of {pool.align}')
        self._noise.copy_(noise)
        self._committed.fill_(torch.nan) if committed is None else self._committed.copy_(committed)
        self._positions.copy_(torch.arange(prefix.rows, prefix.rows + horizon), non_blocking=True)
        self._seen[:horizon + prefix.rows] = True
        self._seen[horizon + prefix.rows:] = False
        if home not in self._denoise:
            self._make_denoise(home)
        return self._denoise[home]()

    def _make_denoise(self, home: int) -> None:
        window = slice(home, home + self.pool.align)

        def run() -> Tensor:
            cos, sin = self.expert.rope.at(self._positions)
            return self.expert.integrate(self._noise, cos, sin, self.pool.k[:, window], self.pool.v[:, window],
                                         self._seen, self._committed)

        self._denoise[home] = Replay(run, self._capture)


def _fill(buffer: Tensor, x: Tensor) -> None:
    """Put x into the first rows, its first row into the others."""
    buffer[:len(x)] = x
    buffer[len(x):] = x[0]
