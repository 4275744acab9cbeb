"""Reading the small files of a checkpoint folder, with one clear error each."""
from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import safetensors.numpy
from pydantic import BaseModel, ValidationError

from oxygen_ros.policy.errors import CheckpointError, one_line

Schema = TypeVar('Schema', bound=BaseModel)


def read_json(path: Path) -> dict[str, Any]:
    """An object of a JSON file. Raises CheckpointError."""
    try:
        data = json.loads(path.read_text(encoding='utf-8'))
    except OSError as error:
        raise CheckpointError(f'{path}: cannot be read ({error.strerror}); copy the whole checkpoint folder') from None
    except ValueError as error:
        raise CheckpointError(f'{path}: not valid JSON ({error}); copy the file again') from None
    if not isinstance(data, dict):
        raise CheckpointError(f'{path}: expected a JSON object; copy the file again')
    return data


def read_schema(schema: type[Schema], path: Path) -> Schema:
    """A JSON file checked against a schema. Raises CheckpointError."""
    try:
        return schema.model_validate(read_json(path))
    except ValidationError as error:
        raise CheckpointError(f'{path}: {one_line(error)}') from None


def read_statistics(path: Path) -> dict[str, np.ndarray]:
    """Tensors of a small safetensors file. Raises CheckpointError."""
    try:
        return safetensors.numpy.load_file(path)
    except OSError as error:
        raise CheckpointError(f'{path}: cannot be read ({error.strerror or error}); '
                              'copy the whole checkpoint folder') from None
    except Exception as error:   # safetensors has one type for all its errors and does not export it
        raise CheckpointError(f'{path} is not a whole safetensors file ({error}); copy the file again') from None
