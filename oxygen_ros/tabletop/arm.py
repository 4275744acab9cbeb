"""Kinematics of the KUKA LBR iiwa 7 R800 with a pointing finger: closed form, vectorised, no simulator needed.

The arm is shoulder (joints 1-3), elbow (4) and wrist (5-7) in a row, so the tool pointing straight down with joints
3, 5 and 7 at zero leaves a planar two-link problem. Lengths are those of ``kuka_iiwa/model.urdf`` in pybullet_data.
"""
from __future__ import annotations

import numpy as np

JOINTS = tuple(f'lbr_iiwa_joint_{i}' for i in range(1, 8))
LIMIT = np.array([2.967, 2.094, 2.967, 2.094, 2.967, 2.094, 3.054])     # rad, symmetric
MAX_VELOCITY = 1.7                                                      # rad/s, the slowest joint of the real arm

SHOULDER, UPPER, LOWER, FLANGE = 0.36, 0.42, 0.40, 0.081                # m
FINGER = 0.18                                                           # m from the flange frame to the fingertip
_SIGN = (1, 1, 1, -1, 1, 1, 1)                                          # joint 4 bends the other way
_AFTER = (0.0, 0.0, UPPER, 0.0, LOWER, 0.0, FLANGE + FINGER)            # m along z after each joint


def forward(q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Fingertip position [..., 3] (m, base frame) and tool rotation [..., 3, 3] for joint positions [..., 7] (rad)."""
    q = np.asarray(q, dtype=np.float64)
    rotation = np.broadcast_to(np.eye(3), (*q.shape[:-1], 3, 3))
    position = np.zeros((*q.shape[:-1], 3)) + (0.0, 0.0, SHOULDER)
    for i, (sign, length) in enumerate(zip(_SIGN, _AFTER)):
        c, s = np.cos(sign * q[..., i]), np.sin(sign * q[..., i])
        x, y, z = rotation[..., 0], rotation[..., 1], rotation[..., 2]
        c, s = c[..., None], s[..., None]
        if i % 2 == 0:      # about z
            rotation = np.stack((c * x + s * y, c * y - s * x, z), axis=-1)
        else:               # about y
            rotation = np.stack((c * x - s * z, y, s * x + c * z), axis=-1)
        position = position + length * rotation[..., 2]
    return position, rotation


def fingertip(q: np.ndarray) -> np.ndarray:
    """Fingertip position [..., 3] in m."""
    return forward(q)[0]


def inverse(tip: np.ndarray) -> np.ndarray:
    """Joint positions [..., 7] that put the fingertip at ``tip`` [..., 3] with the finger pointing straight down.

    Elbow up, joints 3, 5 and 7 at zero. A tip out of reach gives the nearest stretched or folded arm in that direction.
    """
    tip = np.asarray(tip, dtype=np.float64)
    radius = np.hypot(tip[..., 0], tip[..., 1])
    height = tip[..., 2] + FLANGE + FINGER - SHOULDER           # of the wrist above the shoulder
    reach = np.hypot(radius, height)
    reach = np.clip(reach, 1e-6, UPPER + LOWER - 1e-6)
    inner = np.arccos(np.clip((UPPER**2 + LOWER**2 - reach**2) / (2 * UPPER * LOWER), -1, 1))
    lift = np.arccos(np.clip((UPPER**2 + reach**2 - LOWER**2) / (2 * UPPER * reach), -1, 1))
    q = np.zeros((*tip.shape[:-1], 7))
    q[..., 0] = np.arctan2(tip[..., 1], tip[..., 0])
    q[..., 1] = np.arctan2(radius, height) - lift
    q[..., 3] = inner - np.pi
    q[..., 5] = np.pi - q[..., 1] + q[..., 3]                   # pitches add up to straight down
    return q
