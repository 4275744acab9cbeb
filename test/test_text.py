"""Text is made token by token: nothing garbled, nothing lost, nothing taken back."""
from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from oxygen_ros.engine.text import TextStream

CORPUS = ['the arm moves the red cube to the blue bin', 'Where is it?  It is there.', '\n- one\n- two',
          '你好，世界', '🙂👩‍🚀 café', 'ไทย हिन्दी', ' leading', 'trailing ', '  two  spaces  ']
texts = st.lists(st.sampled_from([*CORPUS, ' ', '\n', '\ufffd', '🙂', 'é', 'a']) | st.text(max_size=8),
                 max_size=12).map(''.join)


def byte_level() -> Tokenizer:
    """As GPT-2: every token is a piece of bytes, also across characters."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(CORPUS * 3, trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return tokenizer


def sentencepiece_like(decoder: decoders.Decoder) -> Tokenizer:
    """As Gemma: words with their leading space; what the vocabulary lacks is spelled in bytes."""
    words = ['the', 'arm', 'moves', 'red', 'cube', 'to', 'is', 'it']
    tokens = ['<unk>', *(f'<0x{byte:02X}>' for byte in range(256)), '▁', '▁▁', '\n', *string.ascii_lowercase, *'.,?-好']
    merges = []
    for word in ['▁' + word for word in words]:
        for end in range(2, len(word) + 1):
            if word[:end] not in tokens:
                tokens.append(word[:end])
                merges.append((word[:end - 1], word[end - 1]))
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, [('▁', '▁'), *merges],
                                     byte_fallback=True, unk_token='<unk>'))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme='never')
    tokenizer.decoder = decoder
    return tokenizer


def gemma() -> Tokenizer:
    return sentencepiece_like(decoders.Sequence([decoders.Replace('▁', ' '), decoders.ByteFallback(),
                                                 decoders.Fuse()]))


def llama() -> Tokenizer:
    return sentencepiece_like(decoders.Sequence([decoders.Replace('▁', ' '), decoders.ByteFallback(), decoders.Fuse(),
                                                 decoders.Strip(' ', 1, 0)]))


def metaspace() -> Tokenizer:
    """Drops the space of the first token only, so that a token decoded alone loses its space."""
    return sentencepiece_like(decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]))


TOKENIZERS = {maker.__name__: maker() for maker in (byte_level, gemma, llama, metaspace)}
every_tokenizer = pytest.mark.parametrize('tokenizer', TOKENIZERS.values(), ids=TOKENIZERS.keys())


def stream(tokenizer, ids: list[int], stop: tuple[str, ...] = ()) -> tuple[list[str], TextStream]:
    """Every delta, the last one from ``finish``; ``text`` is checked to be their join at every step."""
    made = TextStream(tokenizer, stop)
    deltas = []
    for token_id in ids:
        deltas.append(made.push(token_id))
        assert made.text == ''.join(deltas)
    deltas.append(made.finish())
    assert made.text == ''.join(deltas)
    return deltas, made


@every_tokenizer
@given(text=texts)
def test_join_of_deltas_is_the_full_decode(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert stream(tokenizer, ids)[1].text == tokenizer.decode(ids)


@given(data=st.data())
def test_join_of_deltas_is_the_full_decode_of_any_bytes(data):
    tokenizer = TOKENIZERS['byte_level']
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=120))
    assert stream(tokenizer, ids)[1].text == tokenizer.decode(ids)


@every_tokenizer
@given(text=texts, data=st.data())
def test_text_cut_anywhere_is_the_beginning_of_the_whole(tokenizer, text, data):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    cut = data.draw(st.integers(0, len(ids)))
    made = stream(tokenizer, ids[:cut])[1].text
    assert tokenizer.decode(ids).startswith(made.rstrip('\ufffd'))


@pytest.mark.parametrize('name', ['gemma', 'llama', 'metaspace'])
@given(data=st.data())
def test_a_wrong_byte_spoils_no_other_token(name, data):
    """The words around any bytes come out with their spaces, in order, whatever the bytes were."""
    tokenizer = TOKENIZERS[name]
    word = tokenizer.token_to_id('▁the')
    runs = data.draw(st.lists(st.lists(st.integers(0x80, 0xff), max_size=5), max_size=60))
    ids = [word] + [i for run in runs for i in ([tokenizer.token_to_id(f'<0x{byte:02X}>') for byte in run] + [word])]
    pieces = stream(tokenizer, ids)[1].text.split(' the')
    if name != 'gemma':   # the others drop the first space
        pieces[0] = pieces[0].removeprefix('the')
        pieces.insert(0, '')
    assert len(pieces) == len(runs) + 2
    for run, piece in zip(runs, pieces[1:], strict=False):
        try:
            assert piece == bytes(run).decode()
        except UnicodeDecodeError:
            assert '\ufffd' in piece


@every_tokenizer
def test_half_a_character_waits_for_the_other_half(tokenizer):
    ids = tokenizer.encode('a🙂b', add_special_tokens=False).ids
    deltas, _ = stream(tokenizer, ids)
    assert len(ids) > 4 and '🙂' in ''.join(deltas)
    assert all('\ufffd' not in delta for delta in deltas)


@every_tokenizer
def test_a_character_that_never_ends_is_flushed_once(tokenizer):
    ids = tokenizer.encode('ab🙂', add_special_tokens=False).ids[:-1]
    deltas, made = stream(tokenizer, ids)
    assert ''.join(deltas[:-1]) == 'ab'
    assert set(deltas[-1]) == {'\ufffd'}
    assert made.finish() == ''


def test_a_good_character_stays_when_the_next_one_never_ends():
    tokenizer = TOKENIZERS['gemma']
    ids = [tokenizer.token_to_id(f'<0x{byte:02X}>') for byte in '你你'.encode()[:-1]]
    assert tokenizer.decode(ids) == '\ufffd' * 5   # this decoder takes the first one back
    assert stream(tokenizer, ids)[1].text == '你\ufffd\ufffd'


@every_tokenizer
@pytest.mark.parametrize('text', ['the arm moves', '好好好', '🙂🙂'])
def test_long_texts_stay_exact_at_a_bounded_cost(tokenizer, text):
    sizes = []

    class Counting:
        def decode(self, ids):
            sizes.append(len(ids))
            return tokenizer.decode(ids)

    ids = tokenizer.encode(' ' + ' '.join([text] * 500), add_special_tokens=False).ids
    assert len(ids) > 900
    assert stream(Counting(), ids)[1].text == tokenizer.decode(ids)
    assert max(sizes) <= 80


def test_a_decoder_that_needs_the_whole_text_gets_it():
    class Numbering:
        """What a token says depends on how many came before it."""

        def decode(self, ids):
            return ''.join(f'{place}:{token_id} ' for place, token_id in enumerate(ids))

    ids = list(range(100, 300))
    assert stream(Numbering(), ids)[1].text == Numbering().decode(ids)


def letter_by_letter(text: str, stop: tuple[str, ...]) -> str:
    for end in range(1, len(text) + 1):
        if ends := [word for word in stop if word and text[:end].endswith(word)]:
            return text[:end - max(map(len, ends))]
    return text


@every_tokenizer
@given(text=st.text('ab .好🙂', max_size=40), stop=st.lists(st.text('ab .好🙂', max_size=4), max_size=3).map(tuple))
def test_text_ends_before_the_first_stop_string(tokenizer, text, stop):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    whole = tokenizer.decode(ids)
    made = stream(tokenizer, ids, stop)[1]
    assert made.text == letter_by_letter(whole, stop)
    assert made.stopped == any(word in whole for word in stop if word)


@every_tokenizer
def test_of_two_stop_strings_the_one_complete_first_ends_the_text(tokenizer):
    """Also where one token brings both."""
    ids = tokenizer.encode('the red arm moves', add_special_tokens=False).ids
    assert stream(tokenizer, ids, ('moves', 'ove'))[1].text.strip() == 'the red arm m'


@every_tokenizer
def test_the_beginning_of_a_stop_string_is_held_back(tokenizer):
    made = TextStream(tokenizer, ('abc',))
    a, b, x = (tokenizer.encode(letter, add_special_tokens=False).ids[-1] for letter in 'abx')
    assert [made.push(a), made.push(b), made.push(x)] == ['', '', 'abx']
    assert [made.push(a), made.push(b), made.finish()] == ['', '', 'ab']


def test_nothing_follows_a_stop_string():
    tokenizer = TOKENIZERS['gemma']
    made = TextStream(tokenizer, ('.',))
    ids = tokenizer.encode('it is. the arm', add_special_tokens=False).ids
    assert ''.join(made.push(i) for i in ids) + made.finish() == made.text == 'it is'
    assert made.stopped
