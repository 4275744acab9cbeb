"""A problem is said once when it begins and once when it is over."""
from oxygen_ros.node.freshness import SECOND, Problem
from oxygen_ros.node.notices import Notices


def news(notices, problems, seconds):
    begun, over = notices.update(problems, round(seconds * SECOND))
    return [p.text for p in begun], [p.text for p in over]


def test_a_lasting_problem_is_said_once_though_its_text_changes():
    notices = Notices()
    assert news(notices, [Problem('camera', 'stale', 'for 0.5 s')], 0.0) == (['for 0.5 s'], [])
    for step in range(1, 50):
        assert news(notices, [Problem('camera', 'stale', f'for {step} s')], step * 0.1) == ([], [])
    assert str(notices.present[0]) == 'camera: for 49 s', 'but the newest text is at hand'


def test_its_end_is_said_once_and_a_flicker_is_not_its_end():
    notices = Notices()
    problem = Problem('camera', 'stale', 'x')
    news(notices, [problem], 0.0)
    for step in range(1, 20):
        assert news(notices, [problem] if step % 3 == 0 else [], step * 0.2) == ([], [])
    assert news(notices, [], 5.0) == ([], ['x'])
    assert news(notices, [], 6.0) == ([], [])
    assert news(notices, [problem], 7.0) == (['x'], []), 'a later one is news again'


def test_what_was_never_there_gets_time_to_start_but_less_than_a_second():
    notices, problem = Notices(), Problem('camera', 'missing', 'never seen')
    assert news(notices, [problem], 0.0) == ([], [])
    assert news(notices, [problem], 0.95) == (['never seen'], [])
    assert news(Notices(), [], 0.9) == ([], [])


def test_what_gives_only_a_part_gets_that_time_too():
    notices, problem = Notices(), Problem('/joint_states', 'unnamed', 'joint grip: no message gives its position')
    assert notices.update([problem], 0) == notices.update([problem], SECOND // 2) == ([], [])
    assert notices.update([problem], SECOND) == ([problem], [])


def test_what_came_in_time_is_never_mentioned():
    notices, problem = Notices(), Problem('camera', 'missing', 'never seen')
    news(notices, [problem], 0.0)
    for step in range(1, 30):
        assert news(notices, [], step * 0.1) == ([], [])


def test_two_kinds_of_one_source_are_two_problems():
    notices = Notices()
    both = [Problem('camera', 'stale', 'a'), Problem('camera', 'late', 'b')]
    assert news(notices, both, 0.0) == (['a', 'b'], [])
