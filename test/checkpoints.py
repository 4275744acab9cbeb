"""Small checkpoint folders for tests: the reference ones with a tokenizer, free to be damaged."""
import json
import shutil

import tokenizers
from golden import GOLDEN
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import decoders, models


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
