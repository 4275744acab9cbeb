"""Reference outputs under test/data/golden, copied from the project's shared reference."""
from functools import cache
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import load_file

from oxygen_ros.model.config import PRESETS, ModelConfig

GOLDEN = Path(__file__).parent / 'data' / 'golden'


@cache
def tensors(name: str) -> dict:
    return load_file(GOLDEN / f'{name}.safetensors')


def metadata(name: str) -> dict:
    with safe_open(GOLDEN / f'{name}.safetensors', 'pt') as file:
        return file.metadata()


def tiny_config(spec: str = 'tiny56', mask: str = 'prefix_lm', schedule: str = 'indexed') -> ModelConfig:
    image = {'tiny56': 56, 'tiny224': 224}[spec]
    return PRESETS['tiny'].model_copy(update=dict(image=image, mask=mask, schedule=schedule))
