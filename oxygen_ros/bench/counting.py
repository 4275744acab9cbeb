"""The work that cannot be avoided: FLOPs and bytes of every product that a stage runs, counted from its shapes.

A GEMM of m rows, i in, o out is 2mio FLOPs and moves its weights, input and output once. Attention is
4 * (query, key) pairs * heads * head_dim FLOPs and moves keys and values once per segment, queries and output once.
Norms, activations, rotations and additions are not counted: a perfect kernel hides them behind the products.
"""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from oxygen_ros.bench.ceilings import Ceilings
from oxygen_ros.model.config import ModelConfig
from oxygen_ros.model.segments import Segment


@dataclass(frozen=True)
class Work:
    """One operation, `times` times over."""

    flops: float
    bytes: float
    times: int = 1


Works = tuple[Work, ...]
Shape = tuple[int, int, int, int]  # rows, keys read by every row, causal, outputs


def floor(works: Iterable[Work], ceilings: Ceilings) -> float:
    """Seconds below which these operations cannot run: each is bound by compute or by memory."""
    return sum(w.times * max(w.flops / ceilings.flops, w.bytes / ceilings.bytes) for w in works)


def flops(works: Iterable[Work]) -> float:
    """FLOPs of all."""
    return sum(w.times * w.flops for w in works)


def moved(works: Iterable[Work]) -> float:
    """Bytes of all."""
    return sum(w.times * w.bytes for w in works)


def gemm(rows: int, i: int, o: int, size: int, times: int = 1, weight: int | None = None) -> Work:
    """rows x i times i x o; `size` is bytes per element, `weight` per weight where that differs."""
    return Work(2 * rows * i * o, (size if weight is None else weight) * i * o + size * rows * (i + o), times)


def attention(pairs: int, rows: int, keys: int, heads: int, kv_heads: int, head_dim: int, size: int,
              times: int = 1) -> Work:
    """`pairs` (query, key) pairs of `rows` queries over `keys` keys."""
    return Work(4 * pairs * heads * head_dim, size * head_dim * 2 * (keys * kv_heads + rows * heads), times)


@lru_cache
def vision(c: ModelConfig, images: int, size: int) -> Works:
    """The vision tower and the projector over `images` pictures."""
    tokens, width, layers = c.image_tokens, c.vision_width, c.vision_layers
    rows = images * tokens
    return (gemm(rows, 3 * c.patch ** 2, width, size),
            gemm(rows, width, 3 * width, size, layers),
            attention(tokens ** 2, tokens, tokens, c.vision_heads, c.vision_heads, width // c.vision_heads, size,
                      layers * images),
            gemm(rows, width, width, size, layers),
            gemm(rows, width, c.vision_mlp, size, layers),
            gemm(rows, c.vision_mlp, width, size, layers),
            gemm(rows, width, c.width, size))


def language(c: ModelConfig, segments: Sequence[Segment], size: int, weight: int | None = None) -> Works:
    """One ragged pass over these segments, with the logits of its outputs."""
    shapes = tuple((s.rows, sum(n for _, n in s.read), int(s.causal), s.outputs) for s in segments)
    return _language(c, shapes, size, weight)


@lru_cache(maxsize=4096)
def _language(c: ModelConfig, shapes: tuple[Shape, ...], size: int, weight: int | None) -> Works:
    rows, outputs = sum(s[0] for s in shapes), sum(s[3] for s in shapes)
    queries = c.heads * c.head_dim
    works: list[Work] = []

    def rest(m: int, times: int) -> None:
        works.extend((gemm(m, queries, c.width, size, times, weight), gemm(m, c.width, 2 * c.mlp, size, times, weight),
                      gemm(m, c.mlp, c.width, size, times, weight)))

    whole = c.depth - 1
    works.append(gemm(rows, c.width, queries + 2 * c.head_dim, size, whole, weight))
    rest(rows, whole)
    # In the last layer rows without outputs stop after their keys and values.
    works.append(gemm(rows, c.width, 2 * c.head_dim, size, 1, weight))
    if outputs:
        works.append(gemm(outputs, c.width, queries, size, 1, weight))
        rest(outputs, 1)
        works.append(gemm(outputs, c.width, c.vocab, size, 1, weight))
    for n, read, causal, out in shapes:
        for last, times in ((n, whole), (out, 1)):
            if last:
                works.append(attention(_pairs(n, read, causal, last), last, read + n, c.heads, 1, c.head_dim, size,
                                       times))
    return tuple(works)


def _pairs(rows: int, read: int, causal: int, last: int) -> int:
    """(query, key) pairs of the last `last` of `rows` rows."""
    if not causal:
        return last * (read + rows)
    return last * (read + rows) - last * (last - 1) // 2


@lru_cache
def expert(c: ModelConfig, prefix: int, steps: int, size: int) -> Works:
    """All denoise steps of one chunk over a prefix of `prefix` rows; the ends of the network are fp32."""
    rows, queries, times = c.horizon, c.heads * c.head_dim, steps * c.depth
    return (gemm(rows, c.action_dim, c.expert_width, 4, steps),
            gemm(rows, c.expert_width, queries + 2 * c.head_dim, size, times),
            attention(rows * (prefix + rows), rows, prefix + rows, c.heads, 1, c.head_dim, size, times),
            gemm(rows, queries, c.expert_width, size, times),
            gemm(rows, c.expert_width, 2 * c.expert_mlp, size, times),
            gemm(rows, c.expert_mlp, c.expert_width, size, times),
            gemm(rows, c.expert_width, c.action_dim, 4, steps))
