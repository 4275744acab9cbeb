"""The documentation can be used as it stands: its links lead somewhere, its YAML is valid, its Python runs."""
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from oxygen_ros.contract import Contract, load_contract

HERE = Path(__file__).resolve().parents[1]
PAGES = sorted([*HERE.glob('*.md'), *(HERE / 'docs').glob('*.md')])


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf'^```{language}\n(.+?)^```', (HERE / 'docs' / f'{page}.md').read_text(), re.M | re.S)


def example(page: str, name: str):
    """The class ``name`` of a page's Python."""
    pytest.importorskip('rclpy')
    code, = [block for block in blocks(page, 'python') if f'class {name}(' in block]
    names = {'__name__': page}
    exec(compile(code, f'docs/{page}.md', 'exec'), names)
    return names[name]


@pytest.fixture
def ros():
    rclpy = pytest.importorskip('rclpy')
    rclpy.init(args=[])
    yield
    rclpy.try_shutdown()


@pytest.mark.parametrize('page', PAGES, ids=lambda page: page.stem)
def test_every_link_leads_to_a_file(page):
    for link in re.findall(r'\]\(([^)]+)\)', page.read_text()):
        if not link.startswith(('http:', 'https:')):
            path, _, heading = link.partition('#')
            target = page.parent / path if path else page
            assert target.exists(), f'{page.name} links {link}'
            headings = re.findall(r'^#+ (.+)$', target.read_text(), re.M) if heading else []
            assert not heading or heading in [re.sub(r'[^\w -]', '', h).lower().replace(' ', '-') for h in headings]


def test_the_cameras_make_a_valid_contract():
    cameras, = map(yaml.safe_load, blocks('cameras', 'yaml'))
    contract = Contract.model_validate({
        'robot': 'x', 'semantics': 'cartesian', 'policy_period': 0.1, 'actions': [{'name': 'x'}], **cameras})
    assert [(camera.compressed, camera.required) for camera in contract.cameras] == [
        (False, True), (True, True), (False, False)]


def test_the_controllers_move_the_joints_of_the_contract_that_they_are_for():
    joints = [action.joint for action in load_contract(HERE / 'config/contracts/so101.yaml').joints]
    files = [yaml.safe_load(block) for block in blocks('controllers', 'yaml')]
    assert [file[name]['ros__parameters']['joints'] for file in files
            for name in file if name != 'controller_manager'] == [joints, joints]


def test_the_splitter_gives_each_arm_its_own_joints_under_their_own_names(ros):
    from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint
    node = example('controllers', 'Split')()
    sent = {}
    node.out = {prefix: SimpleNamespace(publish=lambda part, prefix=prefix: sent.update({prefix: part}))
                for prefix in node.out}
    node.split(JointTrajectory(joint_names=['left_waist', 'right_waist', 'left_elbow'],
                               points=[JointTrajectoryPoint(positions=[1.0, 2.0, 3.0])]))
    assert {prefix: (list(part.joint_names), list(part.points[0].positions)) for prefix, part in sent.items()} == {
        'left_': (['waist', 'elbow'], [1.0, 3.0]), 'right_': (['waist'], [2.0])}
    node.destroy_node()


def test_the_follower_of_velocities_clips_them_and_stops_when_no_chunk_comes(ros):
    from rclpy.duration import Duration

    from oxygen_ros.msg import ActionChunk
    node = example('controllers', 'Follow')()
    rows, gripper = [], []
    node.out = SimpleNamespace(publish=lambda row: rows.append(list(row.data)))
    node.gripper = SimpleNamespace(publish=lambda row: gripper.append(row.data[0]))
    node.tick()
    node.take(ActionChunk(horizon=2, action_dim=8, data=[0.1] * 8 + [9.0] * 8, period=Duration(seconds=60).to_msg()))
    node.chunk.header.stamp = node.arrived.to_msg()
    node.tick()
    node.chunk.header.stamp = (node.arrived - Duration(seconds=61)).to_msg()
    node.tick()
    node.chunk.header.stamp = (node.arrived - Duration(seconds=121)).to_msg()
    node.tick()
    node.chunk.header.stamp = node.arrived.to_msg()
    node.arrived -= Duration(seconds=1)
    node.tick()
    assert gripper == [0.0, 0.8], 'and when there is nothing to follow it stays'
    assert rows == [[0.0] * 7, [pytest.approx(0.3)] * 7, [1.0] * 7, [0.0] * 7, [0.0] * 7]
    node.destroy_node()


def test_the_dialog_shows_the_whole_answer_though_a_message_was_lost(ros):
    from oxygen_ros.msg import SpeechToken
    node = example('speech', 'Dialog')()
    shown = []
    node.show = shown.append
    mine = node.ask('where is the red cube?')
    for fields in ({'request_id': 'narration', 'text': 'moving'}, {'text': 'near'},
                   {'text': 'near, on the left', 'sequence': 2},
                   {'text': 'near, on the left', 'sequence': 3, 'is_final': True, 'finish_reason': 'stop'}):
        node.hear(SpeechToken(**{'request_id': mine, **fields}))
    assert ''.join(shown) == 'near, on the left' and not node.asked
    lost = node.ask('anybody?')
    node.hear(SpeechToken(request_id=lost, is_final=True, finish_reason='error', detail='no observation yet'))
    assert shown[-1] == '[error: no observation yet]'
    node.destroy_node()
