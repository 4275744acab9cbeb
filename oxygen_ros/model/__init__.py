"""The pi0.5 model: network, checkpoints, and the pipeline around them.

``load(path) -> Policy`` is the way in. It is resolved when first asked for, so that the node process, which reads
``oxygen_ros.model.observation``, does not import torch.
"""
from __future__ import annotations

from typing import Any

__all__ = ['CheckpointError', 'load', 'read']


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    from oxygen_ros.model import checkpoint
    return getattr(checkpoint, name)
