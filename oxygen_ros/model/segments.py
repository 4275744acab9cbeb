"""A ragged batch of segments: which rows a pass computes, which slots they read, where their keys and values go."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, groupby

import torch
from torch import Tensor

from oxygen_ros.kv import Prefix, Tail
from oxygen_ros.model import kernels
from oxygen_ros.model.config import ModelConfig
from oxygen_ros.model.layers import Rope, attend

Run = tuple[int, int]  # (first slot, rows)
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Segment:
    """Some token rows of one pass, the slots they read and where their keys and values go.

    position: RoPE position of the first row; the others follow.
    write: slot of the first row's keys and values; the others follow.
    read: runs of slots that every row sees in full (written before, or by an earlier layer step of this same pass).
    causal: a row sees the segment's own rows up to itself; otherwise all of them.
    outputs: how many trailing rows go on through the last layer and give a hidden state.
    """

    rows: int
    position: int
    write: int
    read: tuple[Run, ...] = ()
    causal: bool = True
    outputs: int = 0

    @property
    def steps(self) -> bool:
        """Next tokens of a request: causal rows that all go on."""
        return self.causal and self.outputs == self.rows


def split_steps(segment: Segment) -> list[Segment]:
    """A seed that goes before drafted tokens, and these as a segment of their own; all others as they are."""
    seed = segment.rows - segment.outputs + 1
    if not segment.causal or seed == 1 or segment.outputs < 2:
        return [segment]
    return [replace(segment, rows=seed, outputs=1),
            Segment(segment.outputs - 1, segment.position + seed, segment.write + seed,
                    (*segment.read, (segment.write, seed)), True, segment.outputs - 1)]


def places(segment: Segment) -> list[tuple[int, ...]]:
    """Where each row of a causal segment is: position, slot, and the two runs of slots that it sees as (begin, end,
    begin, end); the second may be empty. Raises ValueError if there are more than two."""
    rows: list[tuple[int, ...]] = []
    for i in range(segment.rows):
        runs = [(a, a + n) for a, n in join_runs([*segment.read, (segment.write, i + 1)])]
        first, second = runs if len(runs) > 1 else (*runs, (0, 0))
        rows.append((segment.position + i, segment.write + i, *first, *second))
    return rows


def observation_segments(config: ModelConfig, prefix: Prefix, image_rows: int) -> list[Segment]:
    """The segments that write a prefix of `image_rows` image tokens, then text, under the config's mask."""
    if config.mask == 'prefix_lm':
        return [Segment(prefix.rows, 0, prefix.start, causal=False)]
    images = Segment(image_rows, 0, prefix.start, causal=False)
    text = Segment(prefix.rows - image_rows, image_rows, prefix.start + image_rows, ((prefix.start, image_rows),))
    return [images, text]


def tail_segment(prefix: Prefix, seen: int, tail: Tail, rows: int, outputs: int) -> Segment:
    """`rows` more rows of a tail that reads the first `seen` rows of its prefix."""
    if tail.rows + rows > tail.capacity:
        raise ValueError(f'{rows} rows do not fit into a tail that holds {tail.rows} of {tail.capacity}')
    return Segment(rows, seen + tail.rows, tail.end, ((prefix.start, seen), (tail.start, tail.rows)), True, outputs)


class RaggedPlan:
    """What is the same in every layer of a pass. Attention reads views of the pool.

    slots: where each row's keys and values go. cos, sin: the rows' rotations. kept: rows that go on through the last
    layer; None = all of them, or none when `outputs` is 0.
    """

    def __init__(self, segments: Sequence[Segment], rope: Rope, device: torch.device) -> None:
        def numbers(ranges: Iterable[range]) -> Tensor:
            return torch.tensor([n for r in ranges for n in r], dtype=torch.long).to(device, non_blocking=True)

        self.slots = numbers(range(s.write, s.write + s.rows) for s in segments)
        self.cos, self.sin = rope.at(numbers(range(s.position, s.position + s.rows) for s in segments))
        ends = list(accumulate(s.rows for s in segments))
        self.rows, self.outputs = ends[-1], sum(s.outputs for s in segments)
        self.kept = None
        if 0 < self.outputs < self.rows:
            self.kept = numbers(range(end - s.outputs, end) for s, end in zip(segments, ends, strict=True))
        by_row = kernels.usable(rope.cos) and not rope.head_dim % kernels.PANEL
        self._attention = _pieces(segments, [s.rows for s in segments], by_row)  # every layer but the last
        self._final = _pieces(segments, [s.outputs for s in segments], by_row)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, last: bool) -> Tensor:
        """q [rows, heads, d] (in the last layer: the kept rows) over k, v [slots, d] -> [rows, heads * d]."""
        work = self._final if last else self._attention
        if len(work) == 1:
            return work[0][1](q, k, v)
        out = q.new_empty(q.shape[0], q.shape[1] * q.shape[2])
        for rows, attention in work:
            out[rows] = attention(q[rows], k, v)
        return out


def _pieces(segments: Sequence[Segment], rows: Sequence[int], by_row: bool) -> list[tuple[slice, Attention]]:
    """How the last `rows` rows of each segment attend: a segment at once, or `by_row` all neighbouring causal rows.

    Our kernel takes causal rows one by one, so that a row's result does not depend, in any bit, on how many rows its
    segment or the pass has. torch is quicker where many rows see the same keys; such a segment is always whole.
    """
    work: list[tuple[slice, Attention]] = []
    row = 0
    for causal, group in groupby(((s, n) for s, n in zip(segments, rows, strict=True) if n), lambda x: x[0].causal):
        if causal and by_row:
            table = torch.tensor([place for s, n in group for place in places(s)[-n:]])
            work.append((slice(row, row + len(table)), partial(kernels.attend, places=table)))
            row += len(table)
            continue
        for s, n in group:
            masked = s.rows if causal and s.rows > 1 else 0
            runs = join_runs([*s.read, (s.write, s.rows)])
            work.append((slice(row, row + n), partial(_attend_runs, runs=runs, masked=masked)))
            row += n
    return work


def join_runs(runs: Sequence[Run]) -> list[Run]:
    """Join runs that touch, drop empty ones."""
    out: list[Run] = []
    for start, rows in runs:
        if out and sum(out[-1]) == start:
            out[-1] = (out[-1][0], out[-1][1] + rows)
        elif rows:
            out.append((start, rows))
    return out


def _attend_runs(q: Tensor, k: Tensor, v: Tensor, runs: list[Run], masked: int) -> Tensor:
    """q [rows, heads, d] over runs of slots; the last `masked` keys are causal for the rows, aligned at the end.

    One softmax over all runs, without joining their keys or values.
    """
    if len(runs) == 1 and not masked:
        (start, n), = runs
        return attend(q, k[start:start + n], v[start:start + n])
    rows, heads, d = q.shape
    folded = q.reshape(-1, d) * d ** -0.5
    scores = torch.cat([folded @ k[start:start + n].T for start, n in runs], dim=1)
    if masked:
        hidden = torch.ones(rows, masked, dtype=torch.bool, device=q.device).triu_(masked - rows + 1)
        scores.view(rows, heads, -1)[..., -masked:].masked_fill_(hidden[:, None], -torch.inf)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype).split([n for _, n in runs], dim=1)
    out = sum(w @ v[start:start + n] for w, (start, n) in zip(weights, runs, strict=True))
    return out.view(rows, heads * d)
