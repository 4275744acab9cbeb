"""SigLIP So400m/14's shape: one pass per camera image, projected to the language model's width."""
from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from oxygen_ros.model import names
from oxygen_ros.model.config import ModelConfig
from oxygen_ros.model.layers import EPS, Linear, gelu_tanh


class Vision:
    """Images [n, 3, side, side] in [-1, 1] -> tokens [n, image_tokens, width] (not scaled by sqrt(width)).

    get: returns the tensor of a public name, already on the device and in the tower's dtype.
    """

    def __init__(self, config: ModelConfig, get: Callable[[str], Tensor]) -> None:
        self.config = config
        self.patch = Linear(get(names.VISION + 'embeddings.patch_embedding.weight').flatten(1),
                            get(names.VISION + 'embeddings.patch_embedding.bias'))
        self.position = get(names.VISION + 'embeddings.position_embedding.weight')
        self.blocks = [_Block(config, names.VISION + f'encoder.layers.{i}.', get) for i in range(config.vision_layers)]
        self.norm = get(names.VISION + 'post_layernorm.weight'), get(names.VISION + 'post_layernorm.bias')
        self.project = Linear(get(names.PROJECTOR + 'weight'), get(names.PROJECTOR + 'bias'))

    def __call__(self, images: Tensor) -> Tensor:
        n, side, p = images.shape[0], self.config.image // self.config.patch, self.config.patch
        # The patch convolution (stride = size) is one product over unfolded patches.
        patches = images.to(self.position.dtype).reshape(n, 3, side, p, side, p).permute(0, 2, 4, 1, 3, 5)
        x = self.patch(patches.reshape(n * side * side, -1))
        x = (x.view(n, side * side, -1) + self.position).view(n * side * side, -1)
        for block in self.blocks:
            x = block(x, n)
        x = F.layer_norm(x, x.shape[-1:], *self.norm, EPS)
        return self.project(x).view(n, side * side, -1)


class _Block:
    """One pre-LayerNorm block; rows of all images in one product, attention per image."""

    def __init__(self, config: ModelConfig, name: str, get: Callable[[str], Tensor]) -> None:
        def both(part: str) -> tuple[Tensor, Tensor]:
            return get(name + part + '.weight'), get(name + part + '.bias')

        weights, biases = zip(*(both(f'self_attn.{part}_proj') for part in 'qkv'), strict=True)
        self.heads = config.vision_heads
        self.norm1, self.norm2 = both('layer_norm1'), both('layer_norm2')
        self.qkv = Linear(torch.cat(weights), torch.cat(biases))
        self.out = Linear(*both('self_attn.out_proj'))
        self.fc1, self.fc2 = Linear(*both('mlp.fc1')), Linear(*both('mlp.fc2'))

    def __call__(self, x: Tensor, images: int) -> Tensor:
        rows, width = x.shape
        h = F.layer_norm(x, (width,), *self.norm1, EPS)
        q, k, v = self.qkv(h).view(images, rows // images, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, width)
        x = x + self.out(attended)
        h = F.layer_norm(x, (width,), *self.norm2, EPS)
        return x + self.fc2(gelu_tanh(self.fc1(h)))
