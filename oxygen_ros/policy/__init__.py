"""What makes a robot's policy of the network: checkpoints, and the way from an observation to rows and back to actions.

``load(path) -> Policy`` is the way in. It is resolved when first asked for, so that the node process, which reads
``oxygen_ros.policy.observation``, does not import torch.
"""
from __future__ import annotations

from typing import Any

__all__ = ['CheckpointError', 'load', 'read']


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    from oxygen_ros.policy import checkpoint
    return getattr(checkpoint, name)
