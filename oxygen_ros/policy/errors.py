"""The one error of everything that belongs to a checkpoint."""
from __future__ import annotations

from pydantic import ValidationError


class CheckpointError(ValueError):
    """A checkpoint that is not loaded; one message naming what is wrong, the likely cause and the remedy."""


def one_line(error: ValidationError) -> str:
    """Every fault that a schema found, in one line."""
    return '; '.join(f'{".".join(map(str, fault["loc"])) or "file"}: {fault["msg"]}'
                     for fault in error.errors(include_url=False))
