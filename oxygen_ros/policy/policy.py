"""A network with everything around it: observation -> network input, network output -> actions of the robot."""
from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from oxygen_ros.model.config import ModelConfig
from oxygen_ros.model.pi05 import Pi05
from oxygen_ros.policy.normalise import Normaliser
from oxygen_ros.policy.observation import Observation
from oxygen_ros.policy.prompt import Prompt
from oxygen_ros.policy.resize import Flavour, resize_with_pad
from oxygen_ros.policy.tokenizer import Tokenizer


@dataclass(frozen=True)
class Recipe:
    """How one checkpoint wants to be fed and read, apart from its weights and tokenizer.

    format: what the files are, for people ("LeRobot", "openpi", "random weights").
    cameras: names in the order of the prefix. aliases: other name of a camera -> name (rename map of the training).
    state, actions: the statistics. relative: [action_dim], which actions are offsets from the state.
    state_names, action_names: what the dimensions are called, as far as known.
    notes: what a person should know about this checkpoint, one sentence each.
    """

    format: str
    cameras: tuple[str, ...]
    state_dim: int
    action_dim: int
    resize: Flavour
    state: Normaliser
    actions: Normaliser
    aliases: Mapping[str, str] = field(default_factory=dict)
    relative: tuple[bool, ...] = ()
    state_names: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Prepared:
    """An observation as the network reads it.

    cameras: those present, in prefix order. ids: prompt with bos. text: the same prompt as text.
    Pictures are resized on demand, so that one that was encoded before costs nothing.
    """

    cameras: tuple[str, ...]
    ids: list[int]
    text: str
    image: Callable[[str], Tensor] = field(repr=False)

    @property
    def images(self) -> Tensor:
        """float32 [cameras, 3, side, side] in [-1, 1]."""
        return torch.stack([self.image(camera) for camera in self.cameras])


class Policy:
    """One loaded checkpoint. ``net`` is the network; ``prepare`` and ``finish`` are its two ends."""

    def __init__(self, net: Pi05, tokenizer: Tokenizer, recipe: Recipe, prompt: Prompt) -> None:
        self.net, self.tokenizer, self.recipe, self.prompt = net, tokenizer, recipe, prompt
        self.config: ModelConfig = net.config
        self.cameras = recipe.cameras
        self.state_dim, self.action_dim = recipe.state_dim, recipe.action_dim
        self._relative = np.flatnonzero(recipe.relative)
        self.forget()

    def forget(self) -> None:
        """Count observations from nothing again, for example after a warm-up with invented ones."""
        self._observations = 0
        self._clipped = np.zeros(self.state_dim, int)
        self._shortened, self._cut = 0, ''

    def prepare(self, observation: Observation) -> Prepared:
        """Raises ValueError, naming what is wrong, on an observation that the checkpoint cannot read."""
        images = self._images(observation.images)
        encoded = self.prompt.encode(observation.instruction, self._state(observation.state))
        if encoded.note:
            self._shortened, self._cut = self._shortened + 1, encoded.note
        cameras = tuple(camera for camera in self.cameras if camera in images)

        def image(camera: str) -> Tensor:
            try:
                return resize_with_pad(images[camera], self.config.image, self.recipe.resize)
            except ValueError as error:
                raise ValueError(f'camera {camera}: {error}') from None

        return Prepared(cameras, encoded.ids, encoded.text, image)

    def _images(self, given: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        images: dict[str, np.ndarray] = {}
        for name, image in given.items():
            camera = self.recipe.aliases.get(name, name)
            if camera not in self.cameras:
                raise ValueError(f'unknown camera {name!r}: the checkpoint knows {", ".join(self.cameras)}')
            if camera in images:
                raise ValueError(f'camera {camera!r} is given twice, once as {name!r}')
            images[camera] = image
        if not images:
            raise ValueError(f'no camera image: the checkpoint reads {", ".join(self.cameras)}')
        return images

    def _state(self, raw: np.ndarray) -> np.ndarray:
        """Check and normalise a state; count what the prompt cannot express."""
        if raw.shape != (self.state_dim,):
            raise ValueError(f'state has shape {list(raw.shape)}, the checkpoint reads {self.state_dim} values')
        if not np.isfinite(raw).all():
            broken = np.flatnonzero(~np.isfinite(raw)).tolist()
            raise ValueError(f'state is not finite: {", ".join(map(self._name, broken))}')
        state = self.recipe.state.normalise(raw)
        self._observations += 1
        self._clipped += np.abs(state) > 1
        return state

    def _name(self, i: int) -> str:
        names = self.recipe.state_names
        return names[i] if i < len(names) else f'state[{i}]'

    def finish(self, actions: Tensor | np.ndarray, observation: Observation) -> np.ndarray:
        """Normalised actions [horizon, model's action_dim] -> float32 [horizon, action_dim] in the policy's units.

        Relative actions are added to the state of the observation they were made from, once for the whole chunk.
        Raises ValueError if anything is not finite.
        """
        chunk = self.recipe.actions.unnormalise(np.asarray(actions, np.float32)[:, :self.action_dim])
        chunk[:, self._relative] += observation.state[self._relative]
        if not np.isfinite(chunk).all():
            raise ValueError('the actions are not finite: check the weights and the statistics (oxygen check)')
        return chunk.astype(np.float32)

    def committed(self, observation: Observation) -> Tensor | None:
        """The observation's committed actions as the network's: [horizon, model's action_dim], NaN where free.

        Raises ValueError if they are not [n, action_dim] or not finite. More than the horizon are cut.
        """
        given = observation.committed
        if given is None or not len(given):
            return None
        if given.ndim != 2 or given.shape[1] != self.action_dim or not np.isfinite(given).all():
            raise ValueError(f'committed actions must be finite [n, {self.action_dim}], not {list(given.shape)}')
        chunk = np.array(given[:self.config.horizon], np.float32)
        chunk[:, self._relative] -= observation.state[self._relative]
        out = torch.full((self.config.horizon, self.config.action_dim), torch.nan)
        out[:len(chunk), :self.action_dim] = torch.from_numpy(self.recipe.actions.invert(chunk))
        return out

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know: about the checkpoint, and about the observations so far."""
        notes = list(self.recipe.notes)
        for i in np.flatnonzero(self._clipped).tolist():
            notes.append(f'{self._name(i)}: outside the training range in {self._clipped[i]} of '
                         f'{self._observations} observations')
        if self._shortened:
            notes.append(f'{self._cut} ({self._shortened} of {self._observations} observations)')
        return tuple(notes)

    def describe(self) -> str:
        """One line for logs and diagnostics."""
        c = self.config
        dtype = str(self.net.dtype).removeprefix('torch.') + (' (text: int8)' if self.net.language.int8 else '')
        return (f'pi0.5 from {self.recipe.format}: {c.depth} layers of {c.width}, {dtype} on {self.net.device}, '
                f'cameras {", ".join(self.cameras)}, state {self.state_dim}, '
                f'{c.horizon} x {self.action_dim} actions, {c.mask}')
