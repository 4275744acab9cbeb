"""The Gemma language model as one primitive: a pass over a ragged batch of segments.

Prefilling an observation, appending a seed, decoding one token for each live request and verifying drafted tokens are
the same call with different segments, and may share a pass. Products see all rows at once; attention runs per segment,
reading keys and values in place. Nothing is padded.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from oxygen_ros.kv import Pool
from oxygen_ros.model import kernels, names
from oxygen_ros.model.config import ModelConfig
from oxygen_ros.model.layers import EPS, Linear, Rope, geglu, rms
from oxygen_ros.model.segments import RaggedPlan, Segment, places, split_steps


class Plan(Protocol):
    """What a layer needs to know of a pass; see RaggedPlan, and StaticPlan in graphs.py."""

    slots: Tensor
    cos: Tensor
    sin: Tensor
    outputs: int
    kept: Tensor | None

    def attend(self, q: Tensor, k: Tensor, v: Tensor, last: bool) -> Tensor: ...


class Language:
    """Gemma.

    get: returns a public tensor in the model's dtype on the device; KeyError for the embedding where it is tied.
    """

    def __init__(self, config: ModelConfig, get: Callable[[str], Tensor], rope: Rope) -> None:
        self.config, self.rope = config, rope
        self.head = Linear(get(names.LM_HEAD))
        self.table: Tensor | None = None  # tied to the head, as in the public files
        with suppress(KeyError):
            self.table = get(names.EMBED_TOKENS)
        self.scale = torch.tensor(math.sqrt(config.width), dtype=torch.float32)
        if config.round_embedding_scale:
            self.scale = self.scale.to(self.head.weight.dtype)
        self.blocks = [_Block(config, names.LANGUAGE + f'layers.{i}.', get, split=i == config.depth - 1)
                       for i in range(config.depth)]
        self.norm = 1 + get(names.LANGUAGE + 'norm.weight').float()
        self.int8 = False
        self._decode = None
        if kernels.usable(self.head.weight) and not config.head_dim % kernels.PANEL:
            self._decode = self._one_call(lambda weight: weight)

    def _one_call(self, kept: Callable[[Tensor], kernels.Kept]) -> kernels.Decode:
        c = self.config
        layers = [((block.norm1, block.norm2), [*map(kept, block.products)]) for block in self.blocks]
        return kernels.Decode(layers, self.norm, kept(self.head.weight), c.heads, c.head_dim, c.mlp, c.vocab, EPS)

    def decode_in_int8(self) -> None:
        """From now on steps read a copy of the weights in int8: a quarter of the bytes, and text that may differ.

        Steps are the next tokens of requests and their drafts, whatever shares their pass (`split_steps`). All else, so
        every chunk, stays as it was. Raises ValueError where our kernels cannot be used.
        """
        if self._decode is None:
            raise ValueError('decode_weights: int8 needs float32 on the CPU and our kernels: '
                             f'{kernels.why_not or "this model has another type, device or head size"}')
        if not self.int8:
            self._decode, self.int8 = self._one_call(kernels.quantise), True

    def embed(self, ids: Tensor) -> Tensor:
        """Token ids [rows] -> [rows, width], scaled by sqrt(width)."""
        rows = self.head.rows(ids) if self.table is None else F.embedding(ids, self.table)
        return (rows * self.scale).to(rows.dtype)

    def logits(self, hidden: Tensor) -> Tensor:
        """Hidden states [rows, width] -> fp32 [rows, vocab]."""
        return self.head(hidden).float()

    def __call__(self, x: Tensor, segments: Sequence[Segment], pool: Pool) -> Tensor:
        """Run the pass over rows x [rows, width]; write their KV into the pool.

        Returns the fp32 logits of each segment's last `outputs` rows, in order: [sum of outputs, vocab].
        """
        if self.int8:
            segments = [part for segment in segments for part in split_steps(segment)]
            if len({part.steps for part in segments}) > 1:
                return self._apart(x, segments, pool)
        if self._decode is not None and all(s.steps for s in segments):
            table = torch.tensor([place for s in segments for place in places(s)])
            return self._decode(x, pool.k, pool.v, self.rope.cos, self.rope.sin, table)
        return self.logits(self.run(x, RaggedPlan(segments, self.rope, x.device), pool))

    def _apart(self, x: Tensor, segments: Sequence[Segment], pool: Pool) -> Tensor:
        """The steps in a call of their own, after what they read: a text has the same bits in any company."""
        rows = x.split([s.rows for s in segments])
        logits: dict[int, Tensor] = {}
        for steps in (False, True):
            chosen = [i for i, s in enumerate(segments) if s.steps == steps]
            parts = self(torch.cat([rows[i] for i in chosen]), [segments[i] for i in chosen], pool)
            logits |= zip(chosen, parts.split([segments[i].outputs for i in chosen]), strict=True)
        return torch.cat([logits[i] for i in range(len(segments))])

    def run(self, x: Tensor, plan: Plan, pool: Pool) -> Tensor:
        """The layers, for any plan: the hidden states, after the final norm, of the rows with outputs."""
        for i, block in enumerate(self.blocks):
            x = block(x, plan, pool.k[i], pool.v[i])
        return rms(x, self.norm).to(x.dtype)


class _Block:
    """One layer. In the last one (`split`) rows without outputs stop after their keys and values."""

    def __init__(self, config: ModelConfig, name: str, get: Callable[[str], Tensor], split: bool) -> None:
        self.heads, self.head_dim, self.split = config.heads, config.head_dim, split
        self.norm1 = 1 + get(name + 'input_layernorm.weight').float()
        self.norm2 = 1 + get(name + 'post_attention_layernorm.weight').float()
        qkv = torch.cat([get(name + f'self_attn.{part}_proj.weight') for part in 'qkv'])
        self.qkv = Linear(qkv)
        if split:
            queries = config.heads * config.head_dim
            self.q, self.kv = Linear(qkv[:queries]), Linear(qkv[queries:])
        self.out = Linear(get(name + 'self_attn.o_proj.weight'))
        self.gate_up = Linear(torch.cat([get(name + f'mlp.{part}_proj.weight') for part in ('gate', 'up')]))
        self.down = Linear(get(name + 'mlp.down_proj.weight'))

    @property
    def products(self) -> list[Tensor]:
        """In the order of kernels.Decode."""
        return [linear.weight for linear in (self.qkv, self.out, self.gate_up, self.down)]

    def __call__(self, x: Tensor, plan: Plan, k: Tensor, v: Tensor) -> Tensor:
        h = self._norm(x, self.norm1)
        if self.split:
            kv = self.kv(h).view(-1, 2, self.head_dim)
            self._write(Rope.rotate(kv[:, :1], plan.cos, plan.sin), kv[:, 1], plan, k, v)
            if not plan.outputs:
                return x[:0]
            cos, sin = plan.cos, plan.sin
            if plan.kept is not None:
                x, h, cos, sin = (t.index_select(0, plan.kept) for t in (x, h, cos, sin))
            q = Rope.rotate(self.q(h).view(-1, self.heads, self.head_dim), cos, sin)
        else:
            qkv = self.qkv(h).view(-1, self.heads + 2, self.head_dim)
            qk = Rope.rotate(qkv[:, :-1], plan.cos, plan.sin)
            self._write(qk[:, -1:], qkv[:, -1], plan, k, v)
            q = qk[:, :-1]
        x = self.out(plan.attend(q, k, v, last=self.split), add=x)
        return self.down(geglu(self.gate_up(self._norm(x, self.norm2))), add=x)

    @staticmethod
    def _norm(x: Tensor, weight: Tensor) -> Tensor:
        return rms(x, weight).to(x.dtype)

    @staticmethod
    def _write(key: Tensor, value: Tensor, plan: Plan, k: Tensor, v: Tensor) -> None:
        k.index_copy_(0, plan.slots, key[:, 0])
        v.index_copy_(0, plan.slots, value)
