"""Bytes of keys and values that are copied: measured by watching every operation, not believed."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from oxygen_ros.kv import Pool

# Products may read the pool: that is what it is for. Everything else that reads it and writes elsewhere is a copy.
_PRODUCTS = {'mm', 'bmm', 'addmm', 'baddbmm', 'mv', 'addmv', 'dot', '_scaled_dot_product_flash_attention_for_cpu',
             '_scaled_dot_product_flash_attention', '_scaled_dot_product_efficient_attention',
             '_scaled_dot_product_cudnn_attention'}


class KvCopies(TorchDispatchMode):
    """While active, adds up in ``bytes`` what is copied out of, or within, the storage of a pool.

    An operation other than a product that reads the pool counts with what it writes: clone, cat, index_select, a
    conversion, expanded heads, a slot copied to another slot. Views are free, and so is writing new keys and values.
    Passes that replay a CUDA graph cannot be watched: count with graphs off. Our own kernels (model/kernels.py) are no
    operations of torch and are not watched either: in their sources keys and values are const where they are attended.
    """

    def __init__(self, pool: Pool) -> None:
        super().__init__()
        self.bytes = 0
        self._storages = {pool.k.untyped_storage().data_ptr(), pool.v.untyped_storage().data_ptr()}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        with self:  # under inference_mode composite operations arrive whole: look inside
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        result = func(*args, **kwargs)
        if func.overloadpacket.__name__ not in _PRODUCTS:
            written = list(self._written(func, args, kwargs))
            read = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)
                    and not any(t is w for w in written) and self._pooled(t)]
            if read:
                self.bytes += sum(t.nbytes for t in written or tree_leaves(result)
                                  if isinstance(t, Tensor) and (written or not self._pooled(t)))
        return result

    def _pooled(self, tensor: Tensor) -> bool:
        return tensor.layout == torch.strided and tensor.untyped_storage().data_ptr() in self._storages

    @staticmethod
    def _written(func: Any, args: tuple, kwargs: dict) -> Iterator[Tensor]:
        for i, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                value = args[i] if i < len(args) else kwargs.get(argument.name)
                if isinstance(value, Tensor):
                    yield value
