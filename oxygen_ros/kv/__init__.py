"""The shared KV cache: one pool, immutable prefixes that are shared by reference, private tails."""
from oxygen_ros.kv.pool import Pool, PoolFull, Prefix, Tail

__all__ = ['Pool', 'PoolFull', 'Prefix', 'Tail']
