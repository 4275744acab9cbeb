"""Text <-> token ids from a local file: ``tokenizer.json`` (Hugging Face) or SentencePiece ``*.model`` (openpi)."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import sentencepiece
import tokenizers

from oxygen_ros.policy.errors import CheckpointError

FILES = ('tokenizer.json', 'tokenizer.model', 'paligemma_tokenizer.model')
REMEDY = ('copy the file of the training (Hugging Face: tokenizer.json of google/paligemma-3b-pt-224; openpi: '
          '~/.cache/openpi/big_vision/paligemma_tokenizer.model) into the checkpoint folder')
_EOS = ('<eos>', '</s>', '<|endoftext|>')
_BOS = ('<bos>', '<s>', '<|endoftext|>')
_TURN = ('<end_of_turn>', '<|im_end|>')   # chat models end a turn with these and never say eos


class _Backend(Protocol):
    """What the two libraries have in common. size: one more than the largest id that text can become."""

    size: int

    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: Sequence[int]) -> str: ...
    def find(self, token: str) -> int | None: ...


class _HuggingFace:
    def __init__(self, tokenizer: tokenizers.Tokenizer):
        tokenizer.no_truncation()   # files of published models often cut at their own length
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True   # what a person writes is text: "<eos>" in it ends nothing
        self._tokenizer = tokenizer
        # PaliGemma's <image> is special, and one more than its model has rows.
        special = {index for index, token in tokenizer.get_added_tokens_decoder().items() if token.special}
        self.size = max(set(tokenizer.get_vocab().values()) - special, default=-1) + 1

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def find(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)


class _SentencePiece:
    def __init__(self, processor: sentencepiece.SentencePieceProcessor):
        self._processor = processor
        self.size = processor.vocab_size()

    def encode(self, text: str) -> list[int]:
        return self._processor.encode(text, out_type=int)

    def decode(self, ids: Sequence[int]) -> str:
        return self._processor.decode(list(ids))

    def find(self, token: str) -> int | None:
        index = self._processor.piece_to_id(token)
        return None if index == self._processor.unk_id() else index


class Tokenizer:
    """Text <-> ids.

    ``bos_id`` starts every prompt, ``eos_id`` ends a text, ``stop_ids`` are all ids that end one. ``vocab_size`` is
    one more than the largest id in use; a model may have more rows, whose ids decode to nothing.
    """

    def __init__(self, backend: _Backend, source: str):
        self._backend = backend
        self.source = source
        self.bos_id = self._special(_BOS, 'beginning-of-text')
        self.eos_id = self._special(_EOS, 'end-of-text')
        turns = [backend.find(token) for token in _TURN]
        self.stop_ids = frozenset([self.eos_id, *(turn for turn in turns if turn is not None)])
        self.vocab_size = max(backend.size, self.bos_id + 1, *(index + 1 for index in self.stop_ids))

    def _special(self, names: Iterable[str], what: str) -> int:
        for name in names:
            index = self._backend.find(name)
            if index is not None:
                return index
        raise CheckpointError(f'{self.source}: no {what} token (looked for {", ".join(names)}); '
                             'pi0.5 needs the PaliGemma tokenizer')

    @classmethod
    def from_folder(cls, path: str | Path) -> Tokenizer:
        """The tokenizer of a file, or of a folder that holds one of ``FILES``. Raises CheckpointError."""
        path = Path(path).expanduser()
        if path.is_dir():
            found = [path / name for name in FILES if (path / name).is_file()]
            if not found:
                raise CheckpointError(f'no tokenizer in {path}: expected one of {", ".join(FILES)}; {REMEDY}')
            path = found[0]
        if not path.is_file():
            raise CheckpointError(f'no tokenizer at {path}; {REMEDY}')
        try:
            if path.suffix == '.json':
                return cls(_HuggingFace(tokenizers.Tokenizer.from_file(str(path))), str(path))
            return cls(_SentencePiece(sentencepiece.SentencePieceProcessor(model_file=str(path))), str(path))
        except CheckpointError:
            raise
        except Exception as error:   # tokenizers raises plain Exception
            raise CheckpointError(f'{path} is not a tokenizer that can be read '
                                 f'({" ".join(str(error).split())}); {REMEDY}') from error

    def encode(self, text: str, bos: bool = False) -> list[int]:
        """Ids of ``text``; never eos, and bos only where asked for."""
        ids = list(self._backend.encode(text))
        return [self.bos_id, *ids] if bos else ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``; special ids and rows without a token give nothing, half a character gives U+FFFD."""
        return self._backend.decode([int(i) for i in ids if 0 <= i < self.vocab_size])
