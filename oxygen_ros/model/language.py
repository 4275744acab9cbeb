"""The Gemma language model as one primitive: a pass over a ragged batch of segments.

Prefilling an observation, appending a seed, decoding one token for each live request and verifying drafted tokens are
the same call with different segments, and may share a pass. Products see all rows at once; attention runs per segment,
reading keys and values in place. Nothing is padded.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from oxygen_ros.kv import Pool, Prefix, Tail
from oxygen_ros.model import names
from oxygen_ros.model.config import ModelConfig
from oxygen_ros.model.layers import EPS, Linear, Rope, attend, geglu

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


class Language:
    """Gemma.

    get: returns a public tensor in the model's dtype on the device; KeyError for the embedding where it is tied.
    """

    def __init__(self, config: ModelConfig, get: Callable[[str], Tensor], rope: Rope, pack: bool) -> None:
        self.config, self.rope = config, rope
        self.head = Linear(get(names.LM_HEAD), pack=pack)
        try:
            self.table = get(names.EMBED_TOKENS)
        except KeyError:  # tied, as in the public files
            self.table = self.head.weight
        self.scale = torch.tensor(math.sqrt(config.width), dtype=torch.float32)
        if config.round_embedding_scale:
            self.scale = self.scale.to(self.table.dtype)
        self.blocks = [_Block(config, names.LANGUAGE + f'layers.{i}.', get, pack, split=i == config.depth - 1)
                       for i in range(config.depth)]
        self.norm = 1 + get(names.LANGUAGE + 'norm.weight').float()

    def embed(self, ids: Tensor) -> Tensor:
        """Token ids [rows] -> [rows, width], scaled by sqrt(width)."""
        return (F.embedding(ids, self.table) * self.scale).to(self.table.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [rows, width] -> fp32 [rows, vocab]."""
        return self.head(hidden).float()

    def __call__(self, x: Tensor, segments: Sequence[Segment], pool: Pool) -> Tensor:
        """Run the pass over rows x [rows, width]; write their KV into the pool.

        Returns the hidden states, after the final norm, of each segment's last `outputs` rows, in order.
        """
        plan = _Plan(segments, self.rope, x.device)
        for i, block in enumerate(self.blocks):
            x = block(x, plan, pool.k[i], pool.v[i])
        return F.rms_norm(x.float(), x.shape[-1:], self.norm, EPS).to(x.dtype)


class _Plan:
    """What is the same in every layer of a pass: where rows go and what they read."""

    def __init__(self, segments: Sequence[Segment], rope: Rope, device: torch.device) -> None:
        def ranges(starts_and_rows: list[tuple[int, int]]) -> Tensor:
            return torch.cat([torch.arange(a, a + n) for a, n in starts_and_rows]).to(device, non_blocking=True)

        self.slots = ranges([(s.write, s.rows) for s in segments])
        self.cos, self.sin = rope.at(ranges([(s.position, s.rows) for s in segments]))
        self.attention: list[tuple[slice, list[Run], int]] = []  # every layer but the last: all rows
        self.final: list[tuple[slice, list[Run], int]] = []  # last layer: rows with outputs
        kept, row, out = [], 0, 0
        for s in segments:
            runs = _join([*s.read, (s.write, s.rows)])
            masked = s.rows if s.causal and s.rows > 1 else 0
            self.attention.append((slice(row, row + s.rows), runs, masked))
            if s.outputs:
                self.final.append((slice(out, out + s.outputs), runs, masked))
                kept.append((row + s.rows - s.outputs, s.outputs))
            row, out = row + s.rows, out + s.outputs
        self.rows, self.outputs = row, out
        self.kept = ranges(kept) if out < row and out else None


def _join(runs: Sequence[Run]) -> list[Run]:
    """Join runs that touch, drop empty ones."""
    out: list[Run] = []
    for start, rows in runs:
        if out and sum(out[-1]) == start:
            out[-1] = (out[-1][0], out[-1][1] + rows)
        elif rows:
            out.append((start, rows))
    return out


class _Block:
    """One layer. In the last one (`split`) rows without outputs stop after their keys and values."""

    def __init__(self, config: ModelConfig, name: str, get: Callable[[str], Tensor], pack: bool, split: bool) -> None:
        self.heads, self.head_dim, self.split = config.heads, config.head_dim, split
        self.norm1 = 1 + get(name + 'input_layernorm.weight').float()
        self.norm2 = 1 + get(name + 'post_attention_layernorm.weight').float()
        q, k, v = (get(name + f'self_attn.{part}_proj.weight') for part in 'qkv')
        if split:
            self.q, self.kv = Linear(q, pack=pack), Linear(torch.cat([k, v]), pack=pack)
        else:
            self.qkv = Linear(torch.cat([q, k, v]), pack=pack)
        self.out = Linear(get(name + 'self_attn.o_proj.weight'), pack=pack)
        self.gate_up = Linear(torch.cat([get(name + f'mlp.{part}_proj.weight') for part in ('gate', 'up')]), pack=pack)
        self.down = Linear(get(name + 'mlp.down_proj.weight'), pack=pack)

    def __call__(self, x: Tensor, plan: _Plan, k: Tensor, v: Tensor) -> Tensor:
        h = self._norm(x, self.norm1)
        attention = plan.attention
        if self.split:
            kv = self.kv(h).view(plan.rows, 2, self.head_dim)
            self._write(Rope.rotate(kv[:, :1], plan.cos, plan.sin), kv[:, 1], plan, k, v)
            if not plan.outputs:
                return x[:0]
            cos, sin, attention = plan.cos, plan.sin, plan.final
            if plan.kept is not None:
                x, h, cos, sin = (t.index_select(0, plan.kept) for t in (x, h, cos, sin))
            q = Rope.rotate(self.q(h).view(-1, self.heads, self.head_dim), cos, sin)
        else:
            qkv = self.qkv(h).view(plan.rows, self.heads + 2, self.head_dim)
            qk = Rope.rotate(qkv[:, :-1], plan.cos, plan.sin)
            self._write(qk[:, -1:], qkv[:, -1], plan, k, v)
            q = qk[:, :-1]
        if len(attention) == 1:
            attended = _attend_runs(q, k, v, *attention[0][1:])
        else:
            attended = torch.empty(q.shape[0], self.heads * self.head_dim, dtype=q.dtype, device=q.device)
            for rows, runs, masked in attention:
                attended[rows] = _attend_runs(q[rows], k, v, runs, masked)
        x = x + self.out(attended)
        return x + self.down(geglu(self.gate_up(self._norm(x, self.norm2))))

    @staticmethod
    def _norm(x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x.float(), x.shape[-1:], weight, EPS).to(x.dtype)

    @staticmethod
    def _write(key: Tensor, value: Tensor, plan: _Plan, k: Tensor, v: Tensor) -> None:
        k.index_copy_(0, plan.slots, key[:, 0])
        v.index_copy_(0, plan.slots, value)


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
