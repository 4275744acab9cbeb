"""Small checkpoint folders for tests: the reference ones with a tokenizer, to be damaged, loaded and acted with."""
import json
import shutil

import numpy as np
import pytest
import tokenizers
import torch
from golden import GOLDEN
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import decoders, models

from oxygen_ros.model.segments import observation_segments
from oxygen_ros.policy import CheckpointError, load
from oxygen_ros.policy.observation import Observation


def save_byte_tokenizer(path):
    """The stand-in tokenizer of the reference outputs: pad 0, eos 1, bos 2, then 3 + byte."""
    tokens = ['<pad>', '<eos>', '<bos>', *(f'<0x{byte:02X}>' for byte in range(256))]
    tokenizer = tokenizers.Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, [], byte_fallback=True))
    tokenizer.add_special_tokens(tokens[:3])
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.save(str(path))


def copy(format, to):
    """A copy of the reference checkpoint of a format ('lerobot' or 'openpi') with a tokenizer."""
    shutil.copytree(GOLDEN / f'checkpoint_{format}_tiny56', to)
    for path in to.rglob('*'):
        path.chmod(0o755 if path.is_dir() else 0o644)
    save_byte_tokenizer(to / 'tokenizer.json')
    return to


def edit_json(path, change):
    """Read, let ``change`` edit in place, write."""
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def edit_tensors(path, change):
    """Read all tensors, let ``change`` edit the dict in place, write."""
    tensors = load_file(path)
    with safe_open(path, 'pt') as file:
        metadata = file.metadata()
    change(tensors)
    save_file(tensors, path, metadata)


def observation(state=8, cameras=('base_0_rgb',), instruction='pick up the cube', size=(60, 80)):
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    return Observation({camera: image for camera in cameras}, np.full(state, 0.3, np.float32), instruction)


def act(policy, prepared, noise):
    """Encode, prefill, denoise: the engine's cycle without an engine."""
    net = policy.net
    images = net.encode(prepared.images).flatten(0, 1)
    rows = torch.cat([images, net.embed(prepared.ids)])
    pool = net.pool(len(rows) + net.config.horizon, len(rows) + net.config.horizon)
    prefix = pool.prefix(len(rows), net.config.horizon)
    net.forward(rows, observation_segments(net.config, prefix, len(images)), pool)
    return net.denoise(noise, prefix, pool)


def chunk(policy, seen, seed=0):
    noise = torch.randn(policy.config.horizon, policy.config.action_dim, generator=torch.Generator().manual_seed(seed))
    return policy.finish(act(policy, policy.prepare(seen), noise), seen)


def refused(folder, *words, **options):
    """Loading fails with one line that holds all the words."""
    with pytest.raises(CheckpointError) as error:
        load(folder, **options)
    message = str(error.value)
    assert '\n' not in message
    for word in words:
        assert word in message, message
    return message
