"""pi0.5: vision tower, language model and action expert over one shared cache."""
from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from oxygen_ros.kv import Pool, Prefix
from oxygen_ros.model import kernels
from oxygen_ros.model.config import ModelConfig
from oxygen_ros.model.expert import Expert
from oxygen_ros.model.graphs import Graphs
from oxygen_ros.model.language import Language
from oxygen_ros.model.layers import Rope
from oxygen_ros.model.segments import Segment
from oxygen_ros.model.vision import Vision


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

        if self.device.type == 'cpu' and dtype == torch.float32 and kernels.library is None:
            logging.getLogger(__name__).warning('torch alone computes the model, text 2-3 times slower than with our '
                                                'CPU kernels: %s', kernels.why_not)
        if self.device.type == 'cuda':
            # It plans every new shape for tens of ms on the host, and prompts and riders bring new ones all the time.
            torch.backends.cuda.enable_cudnn_sdp(False)
        if self.device.type == 'cuda' and dtype == torch.bfloat16:
            torch.set_float32_matmul_precision('high')  # TF32 where LeRobot keeps fp32: more exact than bf16 still
        vision_dtype = torch.float32 if config.vision_float32 else dtype
        rope = Rope(config.head_dim, positions, dtype, self.device)
        with torch.inference_mode():
            self.vision = Vision(config, lambda name: put(get(name), vision_dtype))
            self.language = Language(config, lambda name: put(get(name)), rope)
            self.expert = Expert(config, get, put, rope, denoise_steps)

        self.graphs: Graphs | None = None

    def pool(self, slots: int, control: int) -> Pool:
        """A cache for this model."""
        c = self.config
        return Pool(c.depth, c.head_dim, slots, control, self.dtype, self.device)

    def graph_pool(self, slots: int, control: int) -> Pool:
        """A cache whose places are few, and from here on fixed-shape passes over it (CUDA graphs on CUDA)."""
        c = self.config
        slots = -(-(slots + control) // control) * control
        pool = Pool(c.depth, c.head_dim, slots, 2 * control - 1, self.dtype, self.device, align=control)
        self.graphs = Graphs(self.vision, self.language, self.expert, pool, capture=self.device.type == 'cuda')
        return pool

    @torch.inference_mode()
    def encode(self, images: Tensor) -> Tensor:
        """Images [n, 3, side, side] in [-1, 1] -> prefix rows [n, image_tokens, width]."""
        run = self.graphs.encode if self.graphs else self.vision
        return run(images.to(self.device, non_blocking=True)).to(self.dtype)

    @torch.inference_mode()
    def embed(self, ids: Sequence[int]) -> Tensor:
        """Token ids -> rows [len(ids), width]."""
        return self.language.embed(torch.tensor(ids, dtype=torch.long).to(self.device, non_blocking=True))

    @torch.inference_mode()
    def forward(self, rows: Tensor, segments: Sequence[Segment], pool: Pool) -> Tensor:
        """One ragged pass; returns fp32 logits [sum of outputs, vocab] in segment order."""
        if self.graphs and self.graphs.fits(segments, pool):
            return self.graphs.decode(rows, segments)
        return self.language(rows, segments, pool)

    @torch.inference_mode()
    def denoise(self, noise: Tensor, prefix: Prefix, pool: Pool, committed: Tensor | None = None) -> Tensor:
        """Noise fp32 [horizon, action_dim] -> normalised actions, fp32, same shape.

        committed: normalised actions that the chunk must contain, NaN where it is free; see Expert.integrate.
        """
        run = self.graphs.denoise if self.graphs and self.graphs.pool is pool else self.expert
        if committed is not None:
            committed = committed.to(self.device, non_blocking=True)
        return run(noise.to(self.device, non_blocking=True), prefix, pool, committed)
