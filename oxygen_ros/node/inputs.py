"""The newest of every input, and the one consistent snapshot that becomes an observation. Needs no ROS."""
from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from oxygen_ros.contract import Camera, Contract
from oxygen_ros.node.freshness import SECOND, Freshness, Problem, blocks
from oxygen_ros.node.images import ImageError, compressed_to_rgb, to_rgb, transformed
from oxygen_ros.node.joints import Joints


def stamp_of(msg) -> int:
    """Header stamp in ns; 0 = none."""
    return msg.header.stamp.sec * SECOND + msg.header.stamp.nanosec


@dataclass(frozen=True)
class Snapshot:
    """What the policy is shown, in its own units. stamp: node clock, ns; received: steady ns of the newest input."""

    images: dict[str, np.ndarray]
    image_stamps: dict[str, int]
    state: np.ndarray
    stamp: int
    received: int


class CameraInput:
    """The newest picture of one camera, decoded at most once."""

    def __init__(self, camera: Camera, source: str, decode: Callable[..., np.ndarray]) -> None:
        self.camera, self.source = camera, source
        self._decode = compressed_to_rgb if camera.compressed else decode
        self.freshness = Freshness(camera)
        self.count = 0
        self._message = None
        self._pixels: np.ndarray | ImageError | None = None

    def take(self, msg, received: int) -> None:
        """Keep a message in place of the one before."""
        self.freshness.seen(stamp_of(msg), received)
        self.count += 1
        self._message, self._pixels = msg, None

    def pixels(self) -> np.ndarray:
        """RGB uint8 [height, width, 3], upright as in training; ImageError."""
        if self._pixels is None:
            try:
                self._pixels = transformed(self._decode(self._message), self.camera.transforms)
            except ImageError as error:
                self._pixels = error
        if isinstance(self._pixels, ImageError):
            raise self._pixels
        return self._pixels

    def stamp(self) -> int:
        """Tells one picture from the next: its stamp, or its arrival where the driver gives none to trust."""
        return self.freshness.trusted or self.freshness.received or 0


class Inputs:
    """Cameras and joints of one contract. ``resolve`` makes full topic names, ``decode`` pictures from Image."""

    def __init__(self, contract: Contract, resolve: Callable[[str], str] = str,
                 decode: Callable[..., np.ndarray] = to_rgb) -> None:
        self.contract, self._resolve, self._decode = contract, resolve, decode
        self.clear()

    def clear(self) -> None:
        """Forget everything received, as after a jump of time."""
        self.cameras = {
            camera.name: CameraInput(camera, f'camera {camera.name} on {self._resolve(camera.topic)}', self._decode)
            for camera in self.contract.cameras}
        self.joints = Joints(self.contract.state, [
            topic.model_copy(update={'topic': self._resolve(topic.topic)}) for topic in self.contract.joint_topics])

    def image(self, name: str, msg, received: int) -> None:
        self.cameras[name].take(msg, received)

    def joint_state(self, topic: str, msg, received: int, publisher: object = None) -> None:
        self.joints.update(self._resolve(topic), msg.name,
                           {'position': msg.position, 'velocity': msg.velocity, 'effort': msg.effort},
                           stamp_of(msg), received, publisher)

    def measured(self) -> dict[str, float]:
        """Joint -> its position as last told, rad or m, of all joints of the state."""
        return {joint: value for (joint, field), value in self.joints.read().items()
                if field == 'position' and np.isfinite(value)}

    def positions(self) -> np.ndarray:
        """[joints of the trajectory] where they are, rad or m; NaN where unknown."""
        read = self.joints.read()
        return np.array([read.get((action.label, 'position'), np.nan) for action in self.contract.joints])

    def problems(self, now: int, clock: int, max_skew_s: float) -> list[Problem]:
        """Everything that is wrong with the inputs now."""
        found, fresh = [], []
        for camera in self.cameras.values():
            if fault := camera.freshness.fault(now, clock):
                found.append(Problem(camera.source, *fault, blocking=camera.camera.required))
            else:
                fresh.append(camera)
        if self.contract.state:
            of_joints = self.joints.problems(now, clock)
            found += of_joints if blocks(of_joints) else of_joints + self._implausible()
        return found if blocks(found) else found + self._skew(fresh, max_skew_s)

    def _implausible(self) -> list[Problem]:
        if not self.contract.moves_joints:
            return []
        return [Problem(f'joint {action.joint}', 'implausible', f'its position {position:g} is far outside of its '
                        f'limits {list(action.position or ())}: check the sensor, the unit, or the limits in the '
                        'contract')
                for action, position in zip(self.contract.joints, self.positions(), strict=True)
                if not action.plausible(position)]

    def snapshot(self, now: int, clock: int) -> tuple[Snapshot | None, list[Problem]]:
        """The observation, or why there is none. To be asked only when problems() has found nothing blocking.

        A camera that the contract does not require is left out while it has a fault: no picture is better than an old
        one.
        """
        images, problems = {}, []
        for name, camera in self.cameras.items():
            if camera.freshness.fault(now, clock):
                continue
            try:
                images[name] = camera.pixels()
            except ImageError as error:
                problems.append(Problem(camera.source, 'picture', str(error), blocking=camera.camera.required))
        if blocks(problems):
            return None, problems
        if not images:
            return None, [*problems, Problem('cameras', 'missing', 'none has a picture')]
        used = [self.cameras[name] for name in images]
        received = max([self.joints.received(), *(camera.freshness.received or 0 for camera in used)])
        stamp = max([self.joints.newest_stamp(), *(camera.freshness.trusted for camera in used)], default=0)
        return Snapshot(images, {camera.camera.name: camera.stamp() for camera in used},
                        self.contract.state_vector(self.joints.read()), stamp or clock, received), problems

    def _skew(self, cameras: list[CameraInput], max_skew_s: float) -> list[Problem]:
        """Inputs of different moments: one takes longer from its stamp to us than another, or their clocks disagree."""
        delays = [(camera.freshness.delay, camera.source) for camera in cameras if camera.freshness.delay is not None]
        delays += [(delay, 'joint states') for delay in self.joints.delays()]
        if not delays or (skew := (max(delays)[0] - min(delays)[0]) / SECOND) <= max_skew_s:
            return []
        return [Problem('observation', 'skew', f'by its stamps {max(delays)[1]} comes {skew:.2f} s later than '
                        f'{min(delays)[1]} (max_skew_s is {max_skew_s:g}): check the clocks that stamp them')]
