"""What a checkpoint's own files do not tell, said by its owner: ``oxygen.yaml`` in the folder, or in code."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from oxygen_ros.model.config import Mask
from oxygen_ros.policy.errors import CheckpointError, one_line
from oxygen_ros.policy.normalise import FLAT, OnFlat
from oxygen_ros.policy.prompt import Template

FILE = 'oxygen.yaml'


class Overrides(BaseModel):
    """All optional: without them a checkpoint is served as its own files say."""

    model_config = ConfigDict(extra='forbid', frozen=True)

    tokenizer: str | None = Field(None, description='tokenizer.json, a SentencePiece *.model, or a folder with one; '
                                  'relative to the checkpoint folder')
    template: Template | None = Field(None, description='prompt: "state" (pi0.5), "task" (openpi with '
                                      'discrete_state_input=False), "oxygen" (OxyGen)')
    mask: Mask | None = Field(None, description='who sees whom in the prefix: "prefix_lm" (openpi, LeRobot) or '
                              '"causal_text" (OxyGen, with its template)')
    pad_state: int = Field(0, ge=0, le=256, description='fill the state of the prompt up to this many values; 32 for '
                           'checkpoints fine-tuned with LeRobot 0.4')
    asset: str | None = Field(None, description='openpi: which assets/<asset>/norm_stats.json, where there are several')
    on_flat: OnFlat = Field('floor', description='state or action that did not move in training: floor its range or '
                            'refuse the checkpoint')
    flat: float = Field(FLAT, gt=0, description='ranges below this count as not moving, policy units')
    vision_heads: int | None = Field(None, gt=0, description='SigLIP heads of a non-public size; no tensor tells')
    state_names: tuple[str, ...] = Field((), description='names of the state, for messages')
    action_names: tuple[str, ...] = Field((), description='names of the actions, for messages')

    @classmethod
    def read(cls, folder: Path, given: Overrides | None = None) -> Overrides:
        """Those of the folder; what ``given`` sets explicitly wins. Raises CheckpointError."""
        said: dict[str, Any] = {}
        path = folder / FILE
        if path.is_file():
            try:
                said = yaml.safe_load(path.read_text(encoding='utf-8')) or {}
                cls.model_validate(said)
            except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
                raise CheckpointError(f'{path}: not valid YAML: {" ".join(str(error).split())}') from None
            except ValidationError as error:
                raise CheckpointError(f'{path}: {one_line(error)}') from None
        return cls.model_validate(said | (given.model_dump(exclude_unset=True) if given else {}))
