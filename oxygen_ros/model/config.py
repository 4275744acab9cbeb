"""Sizes and switches of a pi0.5 model. Weights decide the sizes; presets serve random weights."""
from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Mask = Literal['prefix_lm', 'causal_text']
Schedule = Literal['indexed', 'additive']


class ModelConfig(BaseModel):
    """The shape of one pi0.5 model.

    mask: ``prefix_lm`` lets every prefix row see every other (openpi, LeRobot); ``causal_text`` keeps images
        bidirectional among themselves and makes the prompt causal (OxyGen).
    schedule: how the flow-matching time is stepped: ``indexed`` is 1 + i * dt (LeRobot), ``additive`` is t += dt in
        fp32 (openpi, OxyGen). The two differ by rounding that moves actions by up to 1.3e-4.
    round_embedding_scale: bf16 only; LeRobot and JAX round sqrt(width) to bf16 before the product, openpi's PyTorch
        rounds after it.
    vision_float32: the vision tower stays in fp32 beside a bf16 model, as LeRobot keeps it (openpi: all bf16).
    """

    model_config = ConfigDict(extra='forbid', frozen=True)

    image: int = Field(gt=0, description='side of the square input image, px')
    patch: int = Field(gt=0, description='side of one patch, px')
    vision_width: int = Field(gt=0)
    vision_layers: int = Field(gt=0)
    vision_heads: int = Field(gt=0)
    vision_mlp: int = Field(gt=0)
    width: int = Field(gt=0)
    depth: int = Field(gt=0)
    mlp: int = Field(gt=0)
    heads: int = Field(gt=0, description='query heads; there is one KV head')
    head_dim: int = Field(gt=0)
    vocab: int = Field(gt=0)
    expert_width: int = Field(gt=0)
    expert_mlp: int = Field(gt=0)
    horizon: int = Field(gt=0, description='actions per chunk')
    action_dim: int = Field(32, gt=0, description='action slots of the model; a robot uses the first few')
    max_prompt: int = Field(200, gt=0, description='most prompt tokens; longer tasks are shortened')
    min_period: float = 4e-3
    max_period: float = 4.0
    mask: Mask = 'prefix_lm'
    schedule: Schedule = 'indexed'
    round_embedding_scale: bool = True
    vision_float32: bool = False

    @model_validator(mode='after')
    def _divisible(self) -> ModelConfig:
        for name, whole, part in (('image / patch', self.image, self.patch),
                                  ('vision_width / vision_heads', self.vision_width, self.vision_heads),
                                  ('head_dim / 2', self.head_dim, 2), ('expert_width / 2', self.expert_width, 2)):
            if whole % part:
                raise ValueError(f'{name}: {whole} is not a multiple of {part}')
        return self

    @property
    def image_tokens(self) -> int:
        """Prefix rows of one camera."""
        return (self.image // self.patch) ** 2


PRESETS = {
    # the reference outputs' size: 112 tensors, 0.4 M parameters
    'tiny': ModelConfig(image=56, patch=14, vision_width=64, vision_layers=2, vision_heads=4, vision_mlp=128, width=64,
                        depth=3, mlp=128, heads=8, head_dim=16, vocab=512, expert_width=32, expert_mlp=64, horizon=10,
                        max_prompt=200),
    # a size that a CPU runs in real time, for benchmarks
    'small': ModelConfig(image=224, patch=14, vision_width=256, vision_layers=4, vision_heads=4, vision_mlp=1024,
                         width=512, depth=6, mlp=2048, heads=8, head_dim=64, vocab=4096, expert_width=256,
                         expert_mlp=1024, horizon=50),
    # the public model: 3.35 G parameters used at inference
    'pi05': ModelConfig(image=224, patch=14, vision_width=1152, vision_layers=27, vision_heads=16, vision_mlp=4304,
                        width=2048, depth=18, mlp=16384, heads=8, head_dim=256, vocab=257152, expert_width=1024,
                        expert_mlp=4096, horizon=50),
}
