"""A ragged batch of segments: which rows a pass computes, which slots they read, where their keys and values go."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from oxygen_ros.kv import Prefix, Tail
from oxygen_ros.model.config import ModelConfig
from oxygen_ros.model.layers import Rope, attend

Run = tuple[int, int]  # (first slot, rows)


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
    """What is the same in every layer of a pass. Attention runs per segment, over views of the pool.

    slots: where each row's keys and values go. cos, sin: the rows' rotations. kept: rows that go on through the last
    layer; None = all of them, or none when `outputs` is 0.
    """

    def __init__(self, segments: Sequence[Segment], rope: Rope, device: torch.device) -> None:
        def ranges(starts_and_rows: list[tuple[int, int]]) -> Tensor:
            return torch.cat([torch.arange(a, a + n) for a, n in starts_and_rows]).to(device, non_blocking=True)

        self.slots = ranges([(s.write, s.rows) for s in segments])
        self.cos, self.sin = rope.at(ranges([(s.position, s.rows) for s in segments]))
        self.attention: list[tuple[slice, list[Run], int]] = []  # every layer but the last: all rows
        self.final: list[tuple[slice, list[Run], int]] = []  # last layer: rows with outputs
        kept, row, out = [], 0, 0
        for s in segments:
            runs = join_runs([*s.read, (s.write, s.rows)])
            masked = s.rows if s.causal and s.rows > 1 else 0
            self.attention.append((slice(row, row + s.rows), runs, masked))
            if s.outputs:
                self.final.append((slice(out, out + s.outputs), runs, masked))
                kept.append((row + s.rows - s.outputs, s.outputs))
            row, out = row + s.rows, out + s.outputs
        self.rows, self.outputs = row, out
        self.kept = ranges(kept) if out < row and out else None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, last: bool) -> Tensor:
        """q [rows, heads, d] (in the last layer: the kept rows) over k, v [slots, d] -> [rows, heads * d]."""
        work = self.final if last else self.attention
        if len(work) == 1:
            return _attend_runs(q, k, v, *work[0][1:])
        out = q.new_empty(q.shape[0], q.shape[1] * q.shape[2])
        for rows, runs, masked in work:
            out[rows] = _attend_runs(q[rows], k, v, runs, masked)
        return out


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
