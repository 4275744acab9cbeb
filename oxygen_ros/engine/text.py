"""Tokens in, text out while it is being made: cumulative detokenising with stop strings.

A token has no text of its own: it may be a third of a character, and whether it brings a space depends on what stands
before it. So the ids are decoded together and the difference is emitted. Only a bounded tail of the ids is decoded
again for each token, cut where the decoded tail proves to be the end of the whole.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

_UNFINISHED = '\ufffd'   # what decoders make of bytes that are not (yet) a character
_TAIL = 32               # ids that stay as context when the older ones are dropped


class Decoder(Protocol):
    """All that is asked of a tokenizer."""

    def decode(self, ids: Sequence[int]) -> str: ...


class TextStream:
    """Text of one request.

    The join of everything that ``push`` and ``finish`` return is the decode of all ids, cut before the first stop
    string. What was returned is never taken back: the beginning of a character, or of a stop string, waits until it
    is decided. A decoder that turns earlier characters into U+FFFD because of a later wrong byte (``ByteFallback`` of
    `tokenizers`) does not change what was said; only the wrong bytes become U+FFFD, as in SentencePiece.
    """

    def __init__(self, tokenizer: Decoder, stop: tuple[str, ...] = ()):
        self._tokenizer = tokenizer
        self._stop = tuple(word for word in stop if word)
        self._ids: list[int] = []   # the tail that is decoded again
        self._done = ''             # its text up to the last whole character
        self._done_ids = 0          # how many of its ids that text is made of
        self._cut = 0               # where the tail may be cut next: a count of ids that ended in a whole character
        self._waiting = ''          # text that may turn out to begin a stop string
        self.text = ''              # everything returned so far
        self.stopped = False        # a stop string was made; nothing follows

    def push(self, token_id: int) -> str:
        """The text that ``token_id`` adds; '' while a character or a stop string is undecided, and after a stop."""
        if self.stopped:
            return ''
        self._ids.append(token_id)
        text, intact = self._decode()
        whole = text.rstrip(_UNFINISHED)
        grown, self._done = whole[len(self._done):], whole
        if len(whole) == len(text):
            self._done_ids = len(self._ids)
            if not intact:
                self._shorten(len(self._ids) - 1)
            elif len(self._ids) - self._cut >= _TAIL:
                self._shorten(self._cut)
        return self._emit(grown)

    def finish(self) -> str:
        """The text that was still waiting, with U+FFFD for half a character. Call it at the request's end."""
        if self.stopped:
            return ''
        rest = self._decode()[0][len(self._done):]
        self._ids, self._done, self._done_ids, self._cut = [], '', 0, 0
        delta = self._emit(rest)
        if not self.stopped:
            delta += self._waiting
            self.text += self._waiting
        self._waiting = ''
        return delta

    def _decode(self) -> tuple[str, bool]:
        """Text of the tail, and whether it still begins with what was said."""
        text = self._tokenizer.decode(self._ids)
        if text.startswith(self._done):
            return text, True
        # A wrong byte after good ones: decode it without them, so that they stay what they were.
        return self._done + self._tokenizer.decode(self._ids[self._done_ids:]), False

    def _shorten(self, start: int) -> None:
        """Drop the ids before ``start`` if the others alone give the same end of the text."""
        tail = self._tokenizer.decode(self._ids[start:])
        # Decoders drop a leading space of the first token; that space is already out.
        if tail and self._done.endswith(tail):
            del self._ids[:start]
            self._done, self._done_ids = tail, len(self._ids)
        self._cut = len(self._ids)

    def _emit(self, text: str) -> str:
        """Let ``text`` through up to a stop string, or to what may become one."""
        text = self._waiting + text
        matches = [(at + len(word), at) for word in self._stop if (at := text.find(word)) >= 0]
        if matches:   # the one that was complete first, as if the text had come letter by letter
            self.stopped = True
            end, self._waiting = min(matches)[1], ''
        else:
            end = len(text) - max((size for word in self._stop for size in range(1, min(len(word), len(text) + 1))
                                   if text.endswith(word[:size])), default=0)
            self._waiting = text[end:]
        self.text += text[:end]
        return text[:end]
