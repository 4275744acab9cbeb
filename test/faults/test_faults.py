"""The faults that a robot meets most, on the real node with a real engine. ``oxygen bench faults`` does all of them.

How soon each is noticed is measured there, on a quiet machine; here it only must be.
"""
import xml.etree.ElementTree as ElementTree

import pytest

pytest.importorskip('rclpy')

from oxygen_ros.bench.trust import engines, inputs  # noqa: E402
from oxygen_ros.bench.trust.fault import provoke  # noqa: E402
from oxygen_ros.bench.trust.live import NAMESPACE  # noqa: E402
from oxygen_ros.share import share  # noqa: E402

FAULTS = {fault.name: fault for fault in (*inputs.FAULTS, *engines.FAULTS, engines.pairs(200))}
SOME = ('camera stopped', 'camera frozen', 'camera corrupted', 'camera in bursts', 'joint states partial',
        'joint states with NaN', 'engine makes NaN', 'instruction changed while speaking', '200 questions at once',
        '200 asked and cancelled', 'engine killed')


@pytest.mark.parametrize('name', SOME)
def test_nothing_unsafe_is_published_and_everything_comes_back(live, name):
    outcome = provoke(live, FAULTS[name])
    assert not outcome.faults
    assert outcome.bad == 0 and outcome.messages > 0
    assert outcome.kv[0] == outcome.kv[1] > 0


def test_the_policy_for_sros2_allows_what_the_node_has_and_no_more(live):
    """A topic that is missing in the policy would be silent in a secured graph; one too many is a hole."""
    profile = ElementTree.parse(share('config/sros2/policy.xml')).find('.//profile[@node="oxygen"]')

    def allowed(kind, way):
        names = [element.text for element in profile.findall(f'{kind}s[@{way}]/{kind}')]
        return {name if name.startswith('/') else f'{NAMESPACE}/{name.replace("~", "oxygen")}' for name in names}

    def present(listing):
        return {name for name, _ in listing('oxygen', NAMESPACE)}

    optional = {f'{NAMESPACE}/commands', '/clock'}  # with forward_commands, with use_sim_time
    of_the_contract = {name for name in allowed('topic', 'subscribe') if name.endswith('/image')}
    node = live.ros
    assert present(node.get_publisher_names_and_types_by_node) == allowed('topic', 'publish') - optional
    assert {name for name in present(node.get_subscriber_names_and_types_by_node) if not name.endswith('/image')} == (
        allowed('topic', 'subscribe') - optional - of_the_contract)
    assert present(node.get_service_names_and_types_by_node) == allowed('service', 'reply')
