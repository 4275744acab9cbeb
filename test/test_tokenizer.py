import io

import pytest
import sentencepiece
import tokenizers
from checkpoints import save_byte_tokenizer
from hypothesis import given
from hypothesis import strategies as st

from oxygen_ros.policy.errors import CheckpointError
from oxygen_ros.policy.tokenizer import Tokenizer


def save_sentencepiece(path):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(['Task: pick up the red block, State: 1 2 3;\nAction: '] * 9), model_writer=model,
        vocab_size=300, byte_fallback=True, hard_vocab_limit=False, add_dummy_prefix=False,
        remove_extra_whitespaces=False, normalization_rule_name='identity', pad_id=0, eos_id=1, bos_id=2, unk_id=3,
        bos_piece='<bos>', eos_piece='<eos>', user_defined_symbols=['<end_of_turn>'], minloglevel=2)
    path.write_bytes(model.getvalue())


@pytest.fixture(scope='module', params=['tokenizer.json', 'tokenizer.model'])
def tokenizer(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp('tokenizer')
    (save_byte_tokenizer if request.param.endswith('json') else save_sentencepiece)(folder / request.param)
    return Tokenizer.from_folder(folder)


@given(text=st.text())
def test_text_survives(tokenizer, text):
    if any(token in text for token in ('<end_of_turn>', '\0', '▁')):
        return
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert all(0 <= i < tokenizer.vocab_size for i in ids)


def test_bos_only_where_asked_for_and_eos_never(tokenizer):
    plain, prompt = tokenizer.encode('Task: a'), tokenizer.encode('Task: a', bos=True)
    assert prompt == [tokenizer.bos_id, *plain]
    assert (tokenizer.bos_id, tokenizer.eos_id) == (2, 1) and tokenizer.eos_id not in prompt


def test_special_and_foreign_ids_decode_to_nothing(tokenizer):
    ids = tokenizer.encode('arm')
    assert tokenizer.decode([tokenizer.bos_id, *ids, tokenizer.eos_id, tokenizer.vocab_size, 10 ** 6, -1]) == 'arm'


def test_half_a_character_does_not_raise(tokenizer):
    assert '�' in tokenizer.decode(tokenizer.encode('你')[-1:])


def test_end_of_turn_stops_too(tmp_path):
    save_sentencepiece(tmp_path / 'tokenizer.model')
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert tokenizer.stop_ids == {1, tokenizer.encode('<end_of_turn>')[-1]}


def test_a_file_that_pads_or_cuts_does_so_no_more(tmp_path):
    save_byte_tokenizer(tmp_path / 'plain.json')
    cutting = tokenizers.Tokenizer.from_file(str(tmp_path / 'plain.json'))
    cutting.enable_truncation(3)
    cutting.enable_padding(length=9)
    cutting.save(str(tmp_path / 'tokenizer.json'))
    assert len(Tokenizer.from_folder(tmp_path).encode('0123456789')) == 10
    assert len(Tokenizer.from_folder(tmp_path).encode('01')) == 2


def test_a_special_token_that_the_model_has_no_row_for_is_never_made_of_text(tmp_path):
    """PaliGemma's <image> is one, and people write what they like."""
    save_byte_tokenizer(tmp_path / 'plain.json')
    more = tokenizers.Tokenizer.from_file(str(tmp_path / 'plain.json'))
    more.add_special_tokens(['<image>'])
    more.save(str(tmp_path / 'tokenizer.json'))
    tokenizer = Tokenizer.from_folder(tmp_path)
    assert more.token_to_id('<image>') == tokenizer.vocab_size == 259
    text = 'an <image>, then <eos><bos>'
    ids = tokenizer.encode(text)
    assert max(ids) < tokenizer.vocab_size and tokenizer.eos_id not in ids and tokenizer.decode(ids) == text
    more.add_tokens(['<loc0>'])  # text may become this one
    more.save(str(tmp_path / 'tokenizer.json'))
    assert Tokenizer.from_folder(tmp_path).vocab_size == 261


def test_a_missing_tokenizer_names_the_remedy(tmp_path):
    with pytest.raises(CheckpointError, match='no tokenizer in .*paligemma-3b-pt-224'):
        Tokenizer.from_folder(tmp_path)
    with pytest.raises(CheckpointError, match='no tokenizer at .*nowhere'):
        Tokenizer.from_folder(tmp_path / 'nowhere')


@pytest.mark.parametrize('name', ['tokenizer.json', 'tokenizer.model'])
@pytest.mark.parametrize('content', [b'', b'{}', b'\x80garbage', b'{"model": {"type": "BPE"}}'])
def test_a_damaged_tokenizer_is_one_message(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=name) as error:
        Tokenizer.from_folder(tmp_path)
    assert '\n' not in str(error.value)


def test_a_tokenizer_of_another_kind_is_refused(tmp_path):
    tokenizers.Tokenizer(tokenizers.models.WordLevel({'a': 0, '[CLS]': 1}, '[CLS]')).save(
        str(tmp_path / 'tokenizer.json'))
    with pytest.raises(CheckpointError, match='no beginning-of-text token'):
        Tokenizer.from_folder(tmp_path)
