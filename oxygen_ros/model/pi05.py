"""pi0.5: vision tower, language model and action expert over one shared cache."""
from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from oxygen_ros.kv import Pool, Prefix
from oxygen_ros.model.config import ModelConfig
from oxygen_ros.model.expert import Expert
from oxygen_ros.model.language import Language, Segment
from oxygen_ros.model.layers import Rope
from oxygen_ros.model.vision import Vision

# Packed copies double the language model's weights; above this size the memory matters more than the speed-up.
_PACK_PARAMETERS = 300_000_000


class Pi05:
    """The network on one device, for inference.

    get: returns the tensor of a public name (oxygen_ros.model.names), on the CPU, in the file's dtype; each weight is
        asked for once, so that a loader can stream.
    positions: most rows that one request may see (prefix, seed and text together).
    """

    def __init__(self, config: ModelConfig, get: Callable[[str], Tensor], device: str | torch.device = 'cpu',
                 dtype: torch.dtype = torch.float32, denoise_steps: int = 10, positions: int = 8192) -> None:
        self.config, self.dtype, self.device, self.positions = config, dtype, torch.device(device), positions

        def put(tensor: Tensor, to: torch.dtype = dtype) -> Tensor:
            return tensor.to(self.device, to)

        vision_dtype = torch.float32 if config.vision_float32 else dtype
        parameters = config.depth * config.width * (2 * config.heads * config.head_dim + 3 * config.mlp)
        rope = Rope(config.head_dim, positions, dtype, self.device)
        with torch.inference_mode():
            self.vision = Vision(config, lambda name: put(get(name), vision_dtype))
            self.language = Language(config, lambda name: put(get(name)), rope, parameters <= _PACK_PARAMETERS)
            self.expert = Expert(config, get, put, rope, denoise_steps)

    def pool(self, slots: int, control: int) -> Pool:
        """A cache for this model."""
        c = self.config
        return Pool(c.depth, c.head_dim, slots, control, self.dtype, self.device)

    @torch.inference_mode()
    def encode(self, images: Tensor) -> Tensor:
        """Images [n, 3, side, side] in [-1, 1] -> prefix rows [n, image_tokens, width]."""
        return self.vision(images.to(self.device)).to(self.dtype)

    @torch.inference_mode()
    def embed(self, ids: Sequence[int]) -> Tensor:
        """Token ids -> rows [len(ids), width]."""
        return self.language.embed(torch.tensor(ids, dtype=torch.long).to(self.device, non_blocking=True))

    @torch.inference_mode()
    def forward(self, rows: Tensor, segments: Sequence[Segment], pool: Pool) -> Tensor:
        """One ragged pass; returns fp32 logits [sum of outputs, vocab] in segment order."""
        return self.language.logits(self.language(rows, segments, pool))

    @torch.inference_mode()
    def denoise(self, noise: Tensor, prefix: Prefix, pool: Pool) -> Tensor:
        """Noise fp32 [horizon, action_dim] -> normalised actions, fp32, same shape."""
        return self.expert(noise.to(self.device), prefix, pool)
