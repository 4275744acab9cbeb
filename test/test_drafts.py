"""What was said last is the guess for what comes next."""
from engines import Rig, observation, text_alone

from oxygen_ros.engine.drafts import Drafts
from oxygen_ros.engine.wire import Ask
from oxygen_ros.policy.observation import Observation


def test_a_repeated_sentence_is_confirmed_without_a_decode_step():
    rig = Rig(ride=True, draft=True)
    for number in range(3):
        rig.engine.ask(Ask(f'n{number}', 'Subtask: ', 'narration', max_tokens=12))
        rig.engine.act(Observation(**{**observation(1).__dict__, 'sequence': number + 1}))
        if number == 0:
            rig.engine.speak()
            first = rig.report
    assert rig.ids('n1') == rig.ids('n2') == rig.ids('n0') == text_alone(1, 'Subtask: ', 12)[0]
    assert rig.report.decode_steps == first.decode_steps == 11
    assert rig.report.accepted == rig.report.drafted == 24


def test_a_channel_whose_drafts_never_hit_is_left_alone():
    rig = Rig(ride=True, draft=True, max_tokens=12)
    for number in range(1, 15):
        rig.engine.ask(Ask(f'n{number}', 'Subtask: ', 'narration'))
        rig.engine.act(observation(number))
        rig.engine.speak()
    assert rig.report.accepted == 0
    assert 0 < rig.report.drafted <= 3 * 12


def test_a_long_text_is_drafted_only_in_part_so_that_no_pass_is_long():
    rig = Rig(ride=True, draft=True, max_tokens=120)
    for number in range(2):
        rig.engine.ask(Ask(f'n{number}', 'Subtask: ', 'memory'))
        rig.engine.act(Observation(**{**observation(1).__dict__, 'sequence': number + 1}))
        rig.engine.speak()
    assert rig.report.drafted == rig.report.accepted == 48
    assert rig.ids('n0') == rig.ids('n1')
    assert len(rig.ids('n1')) == 120


def test_sampled_requests_are_not_drafted():
    rig = Rig(ride=True, draft=True)
    for number in range(1, 4):
        rig.engine.ask(Ask(f'n{number}', 'Subtask: ', temperature=1.0))
        rig.engine.act(observation(number))
        rig.engine.speak()
    assert rig.report.drafted == 0


def test_any_number_of_different_questions_keeps_the_memory_of_drafts_bounded():
    drafts = Drafts()
    drafts.learn(('narration', 'Subtask: '), [1, 2])
    for i in range(1000):
        drafts.learn(('question', str(i)), [i])
        drafts.learn(('narration', 'Subtask: '), [i])
    assert drafts.propose(('narration', 'Subtask: '), 9) == [999], 'what is said again and again stays'
    assert drafts.propose(('question', '0'), 9) == [] and len(drafts._memory) <= 64
