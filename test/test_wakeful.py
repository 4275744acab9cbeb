"""What a node asks of the machine's power management."""
import os

from oxygen_ros.node.wakeful import Wakeful


def _open_files() -> list[str]:
    return [os.path.realpath(f'/proc/self/fd/{number}') for number in os.listdir('/proc/self/fd')]


def test_the_wish_lasts_until_it_is_released(tmp_path):
    device = tmp_path / 'latency'
    device.touch()
    wakeful = Wakeful(str(device))
    for latency_us in (0, 25):  # again: the new one counts
        assert wakeful.hold(latency_us) == ''
        assert int.from_bytes(device.read_bytes(), 'little') == latency_us
        assert _open_files().count(str(device)) == 1
    wakeful.release()
    wakeful.release()
    assert str(device) not in _open_files()


def test_no_wish_opens_nothing(tmp_path):
    assert Wakeful(str(tmp_path / 'latency')).hold(-1) == ''


def test_a_system_that_does_not_allow_it_is_named_with_the_remedy(tmp_path):
    wakeful = Wakeful(str(tmp_path / 'latency'))
    why = wakeful.hold(0)
    assert str(tmp_path) in why and 'No such file' in why and 'wake_latency_us to -1' in why
    assert not any(path.startswith(str(tmp_path)) for path in _open_files())
    assert not list(tmp_path.iterdir()), 'nothing is made'
