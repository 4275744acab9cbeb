"""What the cameras of the simulated robot see. PyBullet loads the arm's meshes and renders them, without a GPU or a
display."""
from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from oxygen_ros.tabletop import arm
from oxygen_ros.tabletop.task import COLOURS, CUBE, Layout


@contextmanager
def _silent() -> Iterator[None]:
    """PyBullet's C code greets on stdout and stderr; let nothing through meanwhile."""
    kept = [os.dup(1), os.dup(2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        yield
    finally:
        ctypes.CDLL(None).fflush(None)      # C keeps its greeting in a buffer when stdout is no terminal
        for number, copy in enumerate(kept, 1):
            os.dup2(copy, number)
            os.close(copy)
        os.close(nowhere)


with _silent():
    import pybullet  # noqa: E402
    import pybullet_data  # noqa: E402
    from pybullet_utils.bullet_client import BulletClient  # noqa: E402

CAMERAS = ('front', 'wrist')
HOME = arm.inverse(np.array([0.54, 0.0, 0.30]))     # rad, where episodes begin in the demo
RGB = {'red': (0.85, 0.10, 0.10), 'green': (0.10, 0.60, 0.15), 'blue': (0.10, 0.25, 0.85), 'yellow': (0.95, 0.80, 0.10)}

_FRONT_EYE, _FRONT_TARGET, _UP = np.array((1.42, 0.0, 0.66)), np.array((0.57, 0.0, 0.05)), np.array((0.0, 0.0, 1.0))
_FOV = {'front': 40.0, 'wrist': 75.0}               # degrees
_WRIST_EYE = np.array((0.09, 0.0, -0.02))           # m, in the flange frame: in front of the finger
_WRIST_TARGET = np.array((0.02, 0.0, 0.30))
_SUPERSAMPLE = 2                                    # the renderer does not smooth edges; averaging 2 x 2 does


class Scene:
    """A table with cubes and the arm. Joint positions ``q`` are float64 [7] in rad."""

    def __init__(self, camera_size: int = 64) -> None:
        self.camera_size = camera_size
        self.layout = Layout({})
        self.q = HOME.copy()
        with _silent():
            self._world = BulletClient(pybullet.DIRECT)
        self._world.setAdditionalSearchPath(pybullet_data.getDataPath())
        self._arm = self._world.loadURDF('kuka_iiwa/model.urdf', useFixedBase=True)
        for link in range(-1, 7):
            self._world.changeVisualShape(self._arm, link, rgbaColor=(0.75, 0.75, 0.78, 1))
        self._body(pybullet.GEOM_BOX, (0.35, 0.31, 0.28), at=(0.55, 0.0, -0.01), halfExtents=(0.42, 0.55, 0.01))
        self._finger = self._body(pybullet.GEOM_CYLINDER, (0.12, 0.12, 0.12), radius=0.012, length=arm.FINGER)
        self._cubes = {c: self._body(pybullet.GEOM_BOX, RGB[c], halfExtents=(CUBE / 2,) * 3) for c in COLOURS}
        self._lens = {c: self._world.computeProjectionMatrixFOV(_FOV[c], 1.0, 0.01, 3.0) for c in CAMERAS}

    def reset(self, layout: Layout, q: np.ndarray) -> None:
        """Lay out the cubes and put the arm at ``q`` at once."""
        self.layout = layout
        self.q = np.array(q, dtype=np.float64)
        for colour, body in self._cubes.items():
            x, y = layout.cubes.get(colour, (0.0, 0.0))
            z = CUBE / 2 if colour in layout.cubes else -5.0
            self._world.resetBasePositionAndOrientation(body, (x, y, z), (0, 0, 0, 1))

    @property
    def tip(self) -> np.ndarray:
        """Fingertip [3], m."""
        return arm.fingertip(self.q)

    def render(self, camera: str) -> np.ndarray:
        """What ``camera`` ('front' or 'wrist') sees now: RGB uint8 [size, size, 3]."""
        if camera not in CAMERAS:
            raise ValueError(f'unknown camera {camera!r}: one of {", ".join(CAMERAS)}')
        self._pose()
        view = self._world.computeViewMatrix(*_look(camera, self.q))
        fine = _SUPERSAMPLE * self.camera_size
        rgba = self._world.getCameraImage(
            fine, fine, view, self._lens[camera], lightDirection=(1.0, 0.6, 2.0), shadow=0,
            renderer=pybullet.ER_TINY_RENDERER, flags=pybullet.ER_NO_SEGMENTATION_MASK)[2]
        rgb = np.asarray(rgba, np.uint16).reshape(fine, fine, 4)[..., :3]
        blocks = rgb.reshape(self.camera_size, _SUPERSAMPLE, self.camera_size, _SUPERSAMPLE, 3)
        return (blocks.sum(axis=(1, 3)) // _SUPERSAMPLE**2).astype(np.uint8)

    def close(self) -> None:
        """Free the renderer."""
        self._world.disconnect()

    def _pose(self) -> None:
        tip, rotation = arm.forward(self.q)
        for joint, position in enumerate(self.q):
            self._world.resetJointState(self._arm, joint, position)
        middle = tip - arm.FINGER / 2 * rotation[:, 2]
        self._world.resetBasePositionAndOrientation(self._finger, middle, _quaternion(rotation))

    def _body(self, shape: int, rgb: tuple[float, ...], at: tuple[float, ...] = (0, 0, 0), **size: object) -> int:
        visual = self._world.createVisualShape(shape, rgbaColor=(*rgb, 1), **size)
        return self._world.createMultiBody(baseVisualShapeIndex=visual, basePosition=at)


def project(camera: str, q: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Where ``camera`` pictures ``points`` [..., 3] with the arm at ``q`` [..., 7]: (right, down) [..., 2], both 0..1
    inside the picture."""
    eye, target, up = _look(camera, q)
    ahead = target - eye
    right = np.cross(ahead, up)
    down = np.cross(ahead, right)
    x, y, z = (((points - eye) * axis).sum(-1) / np.linalg.norm(axis, axis=-1) for axis in (right, down, ahead))
    z = np.maximum(z, 1e-6) * np.tan(np.radians(_FOV[camera]) / 2)
    return 0.5 + 0.5 * np.stack((x / z, y / z), axis=-1)


def _look(camera: str, q: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Eye, target and upward direction of a camera, each [..., 3]."""
    if camera == 'front':
        return _FRONT_EYE, _FRONT_TARGET, _UP
    tip, rotation = arm.forward(q)
    flange = tip - arm.FINGER * rotation[..., 2]
    return flange + rotation @ _WRIST_EYE, flange + rotation @ _WRIST_TARGET, rotation[..., 0]


def _quaternion(rotation: np.ndarray) -> np.ndarray:
    """x, y, z, w of a rotation matrix (by its dominant eigenvector, after Bar-Itzhack, 2000)."""
    (a, b, c), (d, e, f), (g, h, i) = rotation
    k = np.array(((a - e - i, b + d, c + g, h - f), (b + d, e - a - i, f + h, c - g),
                  (c + g, f + h, i - a - e, d - b), (h - f, c - g, d - b, a + e + i)))
    return np.linalg.eigh(k)[1][:, -1]
