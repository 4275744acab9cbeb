"""Requests, limits, reasons, rejections and counting of the engine."""
import time

import numpy as np
import pytest
from engines import Rig, chunk_alone, observation, policy, text_alone

from oxygen_ros.engine.wire import Ask, Chunk, Configure, Rejected, Speech, Standing
from oxygen_ros.policy.observation import Observation


def test_the_chunk_leaves_before_any_text_of_its_cycle():
    rig = Rig(ride=True)
    for number in range(1, 4):
        rig.engine.ask(Ask(f'q{number}', 'Where?', max_tokens=20))
        before = len(rig.events)
        rig.engine.act(observation(number))
        assert isinstance(rig.events[before], Chunk)
        assert any(isinstance(event, Speech) for event in rig.events[before + 1:])


def test_text_does_not_delay_the_next_observation():
    rig = Rig(ride=True)
    rig.engine.ask(Ask('long', 'Subtask: ', max_tokens=24))
    for number in range(1, 6):
        rig.engine.act(observation(number))
    assert rig.report.cycles == 5
    assert len(rig.ids('long')) == 5, 'one free token with each prefill'
    assert rig.report.decode_steps == 0


def test_reasons_stop_length_cancelled_expired():
    rig = Rig()
    ids, _ = text_alone(1, 'Subtask: ', 12)
    stop = policy().tokenizer.decode(ids)[4:6]
    rig.engine.act(observation(1))
    rig.engine.ask(Ask('length', 'Subtask: ', max_tokens=5))
    rig.engine.ask(Ask('stop', 'Subtask: ', max_tokens=12, stop=(stop,)))
    rig.engine.ask(Ask('cancelled', 'Subtask: '))
    rig.engine.ask(Ask('expired', 'Subtask: ', deadline_s=1e-9))
    rig.engine.step()
    rig.engine.cancel('cancelled')
    rig.engine.speak()
    assert {name: rig.final(name).reason for name in ('length', 'stop', 'cancelled', 'expired')} == {
        name: name for name in ('length', 'stop', 'cancelled', 'expired')}
    assert rig.final('stop').text == policy().tokenizer.decode(ids).split(stop)[0]
    assert len(rig.ids('length')) == 5
    assert rig.final('expired').detail


def test_the_end_of_text_token_ends_the_text_and_is_not_said():
    rig = Rig()
    ids, _ = text_alone(1, 'Subtask: ', 12)
    eos = ids[5]
    plain, policy().tokenizer.stop_ids = policy().tokenizer.stop_ids, frozenset([eos])
    try:
        rig.engine.act(observation(1))
        rig.engine.ask(Ask('it', 'Subtask: '))
        rig.engine.speak()
    finally:
        policy().tokenizer.stop_ids = plain
    assert rig.ids('it') == ids[:ids.index(eos)]
    assert rig.final('it').reason == 'stop'


def test_standing_requests_start_every_so_many_cycles_and_do_not_pile_up():
    rig = Rig(standing=(Standing('narration', 'Subtask: ', 2, max_tokens=4),))
    for number in range(1, 8):
        rig.engine.act(observation(number))
        if number >= 5:
            rig.engine.speak()
    starts = sorted({e.request_id for e in rig.events if isinstance(e, Speech)})
    assert starts == ['narration-1', 'narration-7'], 'the first one is unfinished until cycle 5'
    rig.engine.configure(Configure(standing=()))
    rig.engine.act(observation(9))
    rig.engine.speak()
    assert sorted({e.request_id for e in rig.events if isinstance(e, Speech)}) == starts


def test_asking_again_under_the_same_id_replaces_the_unfinished_request():
    rig = Rig()
    rig.engine.act(observation(1))
    rig.engine.ask(Ask('it', 'Subtask: '))
    rig.engine.step()
    rig.engine.ask(Ask('it', 'Where?', max_tokens=2))
    rig.engine.speak()
    assert [m.reason for m in rig.speech('it') if m.final] == ['cancelled', 'length']


@pytest.mark.parametrize('ask, why', [
    (Ask('it', 'very long ' * 200), 'the seed has'),
    (Ask('it', 'Subtask: ', temperature=float('nan')), 'temperature'),
    (Ask('it', 'Subtask: ', temperature=-1.0), 'temperature')])
def test_a_request_that_cannot_be_served_ends_at_once_and_says_why(ask, why):
    rig = Rig()
    rig.engine.ask(ask)
    assert rig.final('it').reason == 'error'
    assert why in rig.final('it').detail


def test_a_request_before_the_first_observation_waits_for_it():
    rig = Rig()
    rig.engine.ask(Ask('early', 'Subtask: ', max_tokens=3))
    rig.engine.speak()
    assert rig.engine.queued == 1
    rig.engine.act(observation(1))
    rig.engine.speak()
    assert rig.ids('early') == text_alone(1, 'Subtask: ', 3)[0]


@pytest.mark.parametrize('bad, why', [
    ({'state': np.full(8, np.nan, np.float32)}, 'not finite'),
    ({'state': np.zeros(3, np.float32)}, 'state has shape'),
    ({'images': {}}, 'no camera'),
    ({'instruction': '  '}, 'instruction'),
    ({'images': {'nose': np.zeros((8, 8, 3), np.uint8)}}, 'nose')])
def test_a_bad_observation_is_rejected_by_name_and_speech_goes_on(bad, why):
    rig = Rig()
    rig.engine.act(observation(1))
    rig.engine.ask(Ask('it', 'Subtask: ', max_tokens=5))
    rig.engine.step()
    rig.engine.act(Observation(**{**observation(2).__dict__, **bad}))
    assert isinstance(rig.events[-1], Rejected)
    assert why in rig.events[-1].why
    rig.engine.speak()
    assert rig.ids('it') == text_alone(1, 'Subtask: ', 5)[0]
    assert rig.report.cycles == 1


def test_a_chunk_that_is_not_finite_never_leaves(monkeypatch):
    rig = Rig()
    broken = np.full((10, 32), np.nan, np.float32)
    import torch
    monkeypatch.setattr(policy().net, 'denoise', lambda *args: torch.from_numpy(broken))
    rig.engine.act(observation(1))
    assert [type(e) for e in rig.events] == [Rejected]
    assert 'not finite' in rig.events[0].why


@pytest.mark.parametrize('graphs', ['never', 'always'])
@pytest.mark.parametrize('ride, tokens', [(False, 9), (True, 9), (True, 1)])
def test_what_is_not_finite_stays_with_its_own_observation(monkeypatch, graphs, ride, tokens):
    """Passes of fixed shape read the whole pool, and 0 times NaN is NaN."""
    rig = Rig(graphs=graphs, ride=ride)
    rig.engine.act(observation(1))
    rig.engine.ask(Ask('before', 'Subtask: ', max_tokens=9))
    rig.engine.step()
    with monkeypatch.context() as broken:
        encode = rig.engine.net.encode
        broken.setattr(rig.engine.net, 'encode', lambda images: encode(images) * float('nan'))
        rig.engine.ask(Ask('of it', 'Subtask: ', max_tokens=tokens))
        rig.engine.act(observation(2))
    assert isinstance(next(e for e in rig.events if not isinstance(e, Chunk | Speech)), Rejected)
    rig.engine.speak()
    assert rig.ids('before') == text_alone(1, 'Subtask: ', 9)[0]
    if ride:  # it had begun
        assert rig.final('of it').reason == 'error' and 'no finite numbers' in rig.final('of it').detail
        assert rig.ids('of it') == []
    else:
        assert rig.speech('of it') == []
    rig.engine.act(observation(3))
    np.testing.assert_allclose(rig.chunk(3), chunk_alone(3), rtol=0, atol=2e-5)
    rig.engine.ask(Ask('after', 'Subtask: ', max_tokens=9))
    rig.engine.speak()
    assert rig.ids('after') == text_alone(3, 'Subtask: ', 9)[0]
    assert rig.engine.pool.used == rig.engine._current.prefix.rows


def test_an_image_with_an_unchanged_stamp_is_not_encoded_again():
    rig = Rig()
    first = observation(1)
    front, wrist = first.images
    rig.engine.act(Observation(**{**first.__dict__, 'image_stamps': {front: 5, wrist: 6}}))
    rig.engine.act(Observation(**{**first.__dict__, 'sequence': 2, 'image_stamps': {front: 5, wrist: 7}}))
    assert rig.report.images == 3
    rig.engine.act(Observation(**{**first.__dict__, 'sequence': 3}))
    assert rig.report.images == 5, 'without stamps every image is new'
    alone = Rig()
    alone.engine.act(Observation(**{**first.__dict__, 'sequence': 2}))
    np.testing.assert_allclose(rig.chunk(2), alone.chunk(2), rtol=0, atol=2e-5)


def test_a_request_expires_even_if_no_observation_ever_comes():
    rig = Rig()
    rig.engine.ask(Ask('it', 'Subtask: ', deadline_s=1e-9))
    rig.engine.speak()
    assert rig.final('it').reason == 'expired'


def test_each_request_expires_at_its_own_deadline_and_once():
    rig = Rig()
    for name, deadline_s in (('never', 0.0), ('late', 3600.0), ('soon', 1e-9), ('replaced', 1e-9), ('sooner', 1e-12)):
        rig.engine.ask(Ask(name, 'Subtask: ', deadline_s=deadline_s))
    rig.engine.ask(Ask('replaced', 'Subtask: '))
    time.sleep(0.001)
    rig.engine.act(observation(1))
    rig.engine.speak()
    ends = {name: [e.reason for e in rig.speech(name) if e.final] for name in ('never', 'late', 'soon', 'sooner')}
    assert ends == {'never': ['length'], 'late': ['length'], 'soon': ['expired'], 'sooner': ['expired']}
    assert [e.reason for e in rig.speech('replaced') if e.final] == ['cancelled', 'length']


def test_requests_without_a_name_get_one_that_nobody_has():
    rig = Rig()
    rig.engine.ask(Ask('question-2', 'Subtask: ', 'question'))
    for _ in range(2):
        rig.engine.ask(Ask('', 'Subtask: ', 'question'))
    rig.engine.act(observation(1))
    rig.engine.speak()
    ended = [e.request_id for e in rig.events if isinstance(e, Speech) and e.final]
    assert len(ended) == len(set(ended)) == 3


def test_rows_are_counted_and_nothing_is_padded():
    rig = Rig()
    rig.engine.act(observation(1, cameras=1))
    prompt = policy().prepare(observation(1, cameras=1)).ids
    assert rig.report.rows == policy().net.config.image_tokens + len(prompt)


def test_a_thousand_asks_and_cancels_leave_nothing():
    rig = Rig()
    rig.engine.act(observation(1))
    base = rig.engine.pool.used
    for i in range(1000):
        rig.engine.ask(Ask(f'{i}', 'Subtask: '))
        if i % 7 == 0:
            rig.engine.step()
        rig.engine.cancel(f'{i - i % 3}')
    rig.engine.cancel()
    assert rig.engine.pool.used == base
    finals = [e for e in rig.events if isinstance(e, Speech) and e.final]
    assert len(finals) == len({e.request_id for e in finals}) == 1000
    rig.engine.reset()
    assert rig.engine.pool.used == 0


def test_warm_up_leaves_no_trace():
    rig = Rig(standing=(Standing('narration', 'Subtask: ', 1, max_tokens=4),))
    rig.engine.warm_up()
    assert rig.events == []
    assert (rig.report.cycles, rig.report.kv_bytes, rig.report.kv_bytes_peak) == (0, 0, 0)
    rig.engine.act(observation(1))
    np.testing.assert_array_equal(rig.chunk(1), chunk_alone(1))


def test_the_engine_belongs_to_one_thread():
    import threading
    rig, caught = Rig(), []

    def foreign():
        try:
            rig.engine.act(observation(1))
        except RuntimeError as error:
            caught.append(str(error))

    thread = threading.Thread(target=foreign)
    thread.start()
    thread.join()
    assert caught == ['the engine belongs to the thread that made it']
