"""What RViz and Foxglove draw on `markers`: the planned path of each tool, and the latest sentence above the robot."""
from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from geometry_msgs.msg import Point, Vector3
from rclpy.publisher import Publisher
from std_msgs.msg import ColorRGBA, Header
from visualization_msgs.msg import Marker, MarkerArray

from oxygen_ros.node.kinematics import Kinematics
from oxygen_ros.node.messages import time

_PATH, _END, _TEXT = ColorRGBA(r=0.1, g=0.8, b=0.9, a=0.9), ColorRGBA(r=1.0, g=0.6, b=0.1, a=1.0), ColorRGBA(
    r=1.0, g=1.0, b=1.0, a=1.0)
_LONGEST = 500  # characters that are drawn
_ABOVE = 1.2  # m, of the sentence over the base


class Markers:
    """Publishes everything with every change, as the topic is latched: a viewer that comes late sees all of it.

    Paths change with every chunk: work them out only while ``watched``.

    frame: of the sentence while no robot description is known; then both are in the description's base.
    """

    def __init__(self, publisher: Publisher, clock: Callable[[], int], frame: str) -> None:
        self._publisher, self._clock, self._frame = publisher, clock, frame
        self.kinematics: Kinematics | None = None
        self._sentence = ''
        self._paths = np.empty((0, 0, 3))

    @property
    def watched(self) -> bool:
        """Somebody looks."""
        return self._publisher.get_subscription_count() > 0

    def said(self, sentence: str) -> None:
        """Show a finished sentence."""
        self._sentence = ''.join(c if c.isprintable() else ' ' for c in sentence)[:_LONGEST]
        self._show()

    def plan(self, positions: Mapping[str, np.ndarray]) -> None:
        """Show where the tools go. positions: joint -> [n], rad or m, from now on."""
        if self.kinematics is not None:
            self._paths = self.kinematics.paths(positions)
            self._show()

    def stop(self) -> None:
        """The robot stands still: take the paths away."""
        if self._paths.size:
            self._paths = np.empty((0, 0, 3))
            self._show()

    def _show(self) -> None:
        frame = self.kinematics.base if self.kinematics is not None else self._frame
        header = Header(stamp=time(self._clock()), frame_id=frame)
        markers = []
        for i in range(len(self.kinematics.tools) if self.kinematics is not None else 0):
            line = Marker(header=header, ns='path', id=i, type=Marker.LINE_STRIP, color=_PATH, scale=Vector3(x=0.008))
            end = Marker(header=header, ns='path_end', id=i, type=Marker.SPHERE, color=_END,
                         scale=Vector3(x=0.03, y=0.03, z=0.03))
            line.pose.orientation.w = end.pose.orientation.w = 1.0
            if i < len(self._paths):
                line.points = [Point(x=x, y=y, z=z) for x, y, z in self._paths[i].tolist()]
                end.pose.position = line.points[-1]
            else:
                line.action = end.action = Marker.DELETE
            markers += [line, end]
        if self._sentence:
            text = Marker(header=header, ns='said', type=Marker.TEXT_VIEW_FACING, text=self._sentence, color=_TEXT,
                          scale=Vector3(z=0.06))
            text.pose.position.z, text.pose.orientation.w = _ABOVE, 1.0
            markers.append(text)
        self._publisher.publish(MarkerArray(markers=markers))
