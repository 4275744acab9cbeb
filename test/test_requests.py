"""Language requests as the node keeps them: one last message each, and nothing said twice."""
from oxygen_ros.engine.wire import Ask, Speech
from oxygen_ros.node.requests import Requests


def speech(request_id='a', sequence=0, text='x', final=False, reason='', channel='question'):
    return Speech(request_id, channel, sequence, 1, 0, (), text, text, final, reason)


def test_a_request_without_an_id_is_given_a_new_one_each_time():
    requests = Requests()
    assert requests.named(Ask('', 's')).request_id != requests.named(Ask('', 's')).request_id
    assert requests.named(Ask('mine', 's')).request_id == 'mine'


def test_ending_everything_gives_each_request_its_last_message_in_sequence():
    requests = Requests()
    requests.open(Ask('new', 's'))
    requests.open(Ask('begun', 's'))
    requests.take(speech('begun', 4, 'so far'))
    requests.take(speech('narration-7', 0, 'standing', channel='narration'))
    last = {s.request_id: s for s in requests.end_all('cancelled', 'why')}
    assert set(last) == {'new', 'begun', 'narration-7'} and len(requests) == 0
    assert last['new'].sequence == 0 and last['begun'].sequence == 5 and last['begun'].text == 'so far'
    assert all(s.final and s.reason == 'cancelled' and s.detail == 'why' and not s.delta for s in last.values())


def test_the_engines_own_last_message_does_not_come_a_second_time():
    requests = Requests()
    requests.open(Ask('a', 's'))
    requests.end_all('cancelled', '')
    assert requests.take(speech(sequence=3)) is None
    assert requests.take(speech(sequence=4, final=True, reason='cancelled')) is None
    assert requests.take(speech()) is not None, 'the id is free again'


def test_what_is_left_of_a_request_that_was_ended_is_not_taken_for_the_next_of_its_id():
    requests = Requests()
    requests.open(Ask('a', 's'))
    requests.end_all('cancelled', '')
    requests.open(Ask('a', 's'))
    assert len(requests) == 1
    assert requests.take(speech(sequence=1)) is None
    assert requests.take(speech(sequence=2, final=True, reason='cancelled')) is None, 'of the one before'
    assert requests.take(speech(final=True, reason='stop')) is not None and len(requests) == 0


def test_a_request_that_takes_the_place_of_another_outlives_its_end():
    requests = Requests()
    requests.open(Ask('a', 's'))
    requests.take(speech(sequence=0))
    requests.open(Ask('a', 's'))
    assert requests.take(speech(sequence=1, final=True, reason='cancelled')) is not None
    assert len(requests) == 1
    last, = requests.end_all('cancelled', 'why')
    assert last.sequence == 0, 'that of the new one, of which nothing was heard'


def test_the_requests_of_one_id_can_be_ended_alone():
    requests = Requests()
    requests.open(Ask('a', 's'))
    requests.open(Ask('b', 's'))
    assert [last.request_id for last in requests.end('a', 'cancelled', '')] == ['a']
    assert not requests.end('a', 'cancelled', '') and not requests.end('nobody', 'cancelled', '')
    assert len(requests) == 1 and requests.take(speech(final=True, reason='cancelled')) is None


def said(requests, request_id, text, channel, again=False, reason='stop'):
    return requests.news(requests.take(speech(request_id, 0, text, True, reason, channel)), again)


def test_an_unchanged_narration_is_said_once_unless_wanted():
    requests = Requests()
    assert said(requests, 'n-1', ' reach the cube ', 'narration') == 'reach the cube'
    assert said(requests, 'n-2', 'reach the cube', 'narration') == ''
    assert said(requests, 'n-3', 'reach the cube', 'narration', again=True) == 'reach the cube'
    assert said(requests, 'n-4', 'lift it', 'narration') == 'lift it'
    assert said(requests, 'm-1', 'lift it', 'memory') == 'lift it', 'channels are apart'


def test_who_asks_is_always_answered():
    requests = Requests()
    for request_id in 'ab':
        requests.open(Ask(request_id, 's'))
        assert said(requests, request_id, 'on the left', 'question') == 'on the left'


def test_nothing_is_kept_of_channels_that_anybody_may_name():
    requests = Requests()
    for number in range(10):
        requests.open(Ask('a', 's', f'channel {number}'))
        said(requests, 'a', 'text', f'channel {number}')
    assert not requests._said and not requests._unfinished


def test_what_was_cut_short_or_is_empty_is_not_said():
    requests = Requests()
    assert said(requests, 'a', 'half a sen', 'narration', reason='cancelled') == ''
    assert said(requests, 'b', '  ', 'narration') == ''
    assert requests.news(requests.take(speech('c', text='more to come')), False) == ''
