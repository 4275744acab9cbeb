"""A cv_bridge is used for what it does soundly, and never needed."""
import sys
from array import array
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip('sensor_msgs')

from sensor_msgs.msg import Image  # noqa: E402

from oxygen_ros.node.bridge import choose_decoder  # noqa: E402
from oxygen_ros.node.images import SUPPORTED, ImageError, to_rgb  # noqa: E402


class Bridge:
    """A cv_bridge as it should be; ``calls`` counts its use."""

    calls = 0

    def imgmsg_to_cv2(self, msg, encoding):
        Bridge.calls += 1
        assert encoding == 'rgb8'
        return to_rgb(msg)


class Narrow(Bridge):
    """16-bit pictures come out as their lower byte, as with the one on PyPI."""

    def imgmsg_to_cv2(self, msg, encoding):
        rgb = super().imgmsg_to_cv2(msg, encoding)
        return rgb // 3 if '16' in msg.encoding else rgb


class Unpadded(Bridge):
    """Ignores the row step."""

    def imgmsg_to_cv2(self, msg, encoding):
        return np.frombuffer(msg.data, np.uint8)[:msg.height * msg.width * 3].reshape(msg.height, msg.width, 3)


class Broken(Bridge):
    def imgmsg_to_cv2(self, msg, encoding):
        raise AttributeError("'numpy.ndarray' object has no attribute 'tostring'")


@pytest.fixture
def install(monkeypatch):
    def _install(bridge):
        monkeypatch.setitem(sys.modules, 'cv_bridge', bridge and SimpleNamespace(CvBridge=bridge))
        Bridge.calls = 0
        return choose_decoder()
    return _install


def picture(encoding='rgb8', **fields):
    data = array('B', bytes(range(4 * 6 * 3)))
    return Image(**{'height': 4, 'width': 6, 'step': 18, 'encoding': encoding, 'data': data, **fields})


def test_a_sound_one_is_used_for_everything(install):
    decode, what = install(Bridge)
    assert all(encoding in what for encoding in SUPPORTED)
    before = Bridge.calls
    assert (decode(picture()) == to_rgb(picture())).all() and Bridge.calls == before + 1


def test_one_that_spoils_sixteen_bits_is_used_for_the_rest(install):
    decode, what = install(Narrow)
    assert 'rgb8' in what and 'mono16' not in what and 'bayer_rggb16' not in what
    wide = picture('mono16', width=9)
    assert (decode(wide) == to_rgb(wide)).all()


@pytest.mark.parametrize('bridge', [Unpadded, Broken, None])
def test_without_a_sound_one_our_own_serves(install, bridge):
    decode, what = install(bridge)
    assert decode is to_rgb and 'own image decoder' in what


def test_a_bad_picture_gets_our_message_whoever_decodes(install):
    decode, _ = install(Bridge)
    with pytest.raises(ImageError, match='step is 3'):
        decode(picture(step=3))
    with pytest.raises(ImageError, match='depth'):
        decode(picture('32FC1'))
