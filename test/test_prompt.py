import numpy as np
import pytest
from checkpoints import save_byte_tokenizer
from golden import metadata, tensors
from hypothesis import given
from hypothesis import strategies as st

from oxygen_ros.policy.prompt import Prompt, discretise
from oxygen_ros.policy.tokenizer import Tokenizer

STATE = np.array([-1.2, -1.0, 0.0, 1.0, 1.2], np.float32)


@pytest.fixture(scope='module')
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp('tokenizer')
    save_byte_tokenizer(folder / 'tokenizer.json')
    return Tokenizer.from_folder(folder)


def test_prompt_and_ids_equal_the_reference(tokenizer):
    golden, told = tensors('tiny56_lerobot_processors'), metadata('tiny56_lerobot_processors')
    encoded = Prompt(tokenizer).encode(told['task'], golden['state_norm'][0].numpy())
    assert encoded.text == told['prompt']
    assert encoded.ids == golden['tokens'][golden['token_mask']].tolist()
    assert not encoded.note


def test_state_bins_as_in_training():
    assert discretise(STATE).tolist() == [-1, 0, 128, 255, 255]


@pytest.mark.parametrize(('template', 'text'), [
    ('state', 'Task: Pick it up., State: -1 0 128 255 255;\nAction: '),
    ('task', 'Pick it up.\n'),
    ('oxygen', 'Task: pick it up. Subtask: '),
])
def test_each_template(tokenizer, template, text):
    assert Prompt(tokenizer, template).encode(' Pick_it\nup.', STATE).text == text


def test_the_state_of_lerobot_0_4_is_filled_up(tokenizer):
    text = Prompt(tokenizer, pad_state=8).encode('go', STATE).text
    assert text == 'Task: go, State: -1 0 128 255 255 128 128 128;\nAction: '


@pytest.mark.parametrize('task', ['', ' ', '\n\t', '_'])
def test_an_empty_instruction_is_refused(tokenizer, task):
    with pytest.raises(ValueError, match='instruction is empty'):
        Prompt(tokenizer).encode(task, STATE)


def test_a_long_task_loses_words_but_never_state_or_cue(tokenizer):
    state = np.linspace(-1, 1, 14)
    encoded = Prompt(tokenizer).encode('put the cup on the plate ' * 200, state)
    assert len(encoded.ids) <= 200
    assert encoded.text.startswith('Task: put the cup on the plate put')
    assert encoded.text.split(', State: ')[1] == ' '.join(map(str, discretise(state))) + ';\nAction: '
    assert encoded.text.split(', State: ')[0].split()[-1] in 'put the cup on the plate'.split()
    assert 'cut from 4999 to' in encoded.note


@given(task=st.text(st.characters(exclude_categories=('Cs',)), min_size=1, max_size=300),
       limit=st.integers(60, 200), template=st.sampled_from(['state', 'task', 'oxygen']))
def test_any_task_fits_the_limit(tokenizer, task, limit, template):
    if not task.strip().replace('_', ' ').strip():
        return
    encoded = Prompt(tokenizer, template, limit).encode(task, STATE)
    assert len(encoded.ids) <= limit and encoded.ids[0] == tokenizer.bos_id
    assert encoded.text.endswith({'state': '255 255;\nAction: ', 'task': '\n', 'oxygen': '. Subtask: '}[template])
    assert bool(encoded.note) == (len(Prompt(tokenizer, template, 10 ** 6).encode(task, STATE).ids) > limit)


def test_a_state_that_leaves_no_room_is_refused(tokenizer):
    with pytest.raises(ValueError, match='no room for the instruction'):
        Prompt(tokenizer).encode('go', np.zeros(64))
