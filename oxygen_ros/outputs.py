"""Files that a command is to write: what is in their way is said before it has worked for an hour, not after."""
from __future__ import annotations

import os
from pathlib import Path


def unwritable(**options: Path | None) -> str:
    """Why the file of one of the options (``json=...``) cannot be written, in one line; '' when all can."""
    for name, path in options.items():
        if path is None:
            continue
        parent = path.absolute().parent
        try:
            if not parent.is_dir():
                return f'--{name}: no folder {parent}'
            if path.is_dir() or not os.access(path if path.exists() else parent, os.W_OK):
                return f'--{name}: {path} cannot be written'
        except OSError as error:  # a folder that may not be searched
            return f'--{name}: {path} cannot be written: {error.strerror}'
    return ''
