"""How an engine is set up: the one schema for the worker, the node, the benchmarks and the command line."""
from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from oxygen_ros.engine.wire import Standing

PRIORITY = {'question': 30, 'narration': 20, 'memory': 10}


class EngineOptions(BaseModel):
    """Everything the engine process needs to start; plain data that pickles."""

    model_config = ConfigDict(extra='forbid', frozen=True)

    checkpoint: str = Field('', description='folder of a checkpoint, or "tabletop" (the embedded robot) or '
                            '"random:tiny", "random:small", "random:pi05" (random weights of that size)')
    device: str = Field('cpu', description='torch device: "cpu", "cuda", "cuda:0"')
    dtype: Literal['auto', 'float32', 'bfloat16'] = Field(
        'auto', description='"auto": float32 on the CPU, bfloat16 on CUDA')
    threads: int = Field(1, ge=1, le=256, description='CPU threads of the engine, at most the cores that it may use')
    mode: Literal['isolated', 'shared', 'continuous'] = Field(
        'continuous', description='continuous: one prefill, text goes on across cycles; shared: one prefill, text ends '
        'in its cycle; isolated: a prefill per task (for comparison)')
    ride: bool = Field(True, description='live requests take one token each with the next prefill')
    draft: bool = Field(True, description="verify the channel's last utterance with the prefill")
    graphs: Literal['auto', 'always', 'never'] = Field(
        'auto', description='fixed-shape passes, captured as CUDA graphs on CUDA; "auto": on CUDA only; "always": the '
        'same passes on the CPU too, uncaptured (to check them)')
    decode_weights: Literal['exact', 'int8'] = Field(
        'exact', description='what next tokens are computed with; "int8": on the CPU, a quarter of the bytes, about '
        'twice the speed for up to four requests, no rides, and text may differ; chunks stay as they are')
    denoise_steps: int = Field(10, ge=1, le=100, description='flow-matching steps per chunk')
    max_live: int = Field(8, ge=1, le=256, description='requests that hold KV at once')
    max_queued: int = Field(32, ge=0, le=4096, description='requests that may wait for room; more are refused')
    max_tokens: int = Field(48, ge=1, le=4096, description='default and upper limit of tokens per request')
    max_seed_tokens: int = Field(128, ge=1, le=4096, description='longest seed in tokens; longer ones are refused')
    guard_s: float = Field(0.002, ge=0.0, le=1.0, description='time kept free before a deadline, s')
    noise_seed: int | None = Field(None, description='fixed seed of the action noise; without, another at each start')
    standing: tuple[Standing, ...] = Field((), description='requests the engine starts by itself')

    @model_validator(mode='after')
    def _int8(self) -> EngineOptions:
        if self.decode_weights == 'int8' and (self.graphs == 'always' or self.device != 'cpu'):
            raise ValueError('decode_weights: int8 is there for the CPU only, and not for graphs: use "exact"')
        return self

    @field_validator('threads')
    @classmethod
    def _threads(cls, value: int) -> int:
        import os
        cores = len(os.sched_getaffinity(0))
        if value > cores:
            raise ValueError(f'{value} threads on {cores} cores: at most {cores}')
        return value
