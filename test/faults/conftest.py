"""One node for all faults of this folder: starting it is what takes time."""
import pytest

pytest.importorskip('rclpy')


@pytest.fixture(scope='module')
def live(tmp_path_factory):
    from oxygen_ros.bench.trust.live import START_S, Live
    live = Live(tmp_path_factory.mktemp('live'))
    try:
        live.moves(timeout=START_S)
        live.connected()
        yield live
        code = live.close()
        assert code == 0, f'exit code {code}: {live.node.output[-2000:]}'
    finally:
        live.node.kill()
