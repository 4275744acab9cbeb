"""Trains the shipped tokenizer: byte-level BPE of 512 entries on everything that is said on the tabletop.

Numbers are cut so that the last two digits are one token and the hundreds another: each discretised joint of the
prompt is then two tokens, whatever its value. Fixed parts of the prompt and of the seeds are one token each.

Run ``python -m oxygen_ros.tabletop.vocabulary FILE`` to make it again; the result is deterministic.
"""
from __future__ import annotations

import sys

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from oxygen_ros.policy.checkpoint import EMBEDDED
from oxygen_ros.tabletop import words
from oxygen_ros.tabletop.task import COLOURS, Intent, random_layout

FILE = EMBEDDED / 'tokenizer.json'
SIZE = 512
SPECIAL = ('<pad>', '<eos>', '<bos>')       # ids 0, 1, 2, as PaliGemma numbers them
_FIXED = ('Task:', ', State:', ';\nAction: ', 'Subtask: ', 'Memory: ', '\nAnswer: ')
_NUMBER = (r' ?\d(?=\d\d(?!\d))', r' (?=\d)', r'\d\d(?!\d)', r'\d')
_CUT = '|'.join([*_FIXED, *_NUMBER, r' ?\p{L}+', r'[^\s\p{L}\d]+', r'\s+'])


def train() -> Tokenizer:
    """Train on a fixed corpus."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(_CUT), 'isolated'),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=SIZE, special_tokens=list(SPECIAL), show_progress=False,
                                  initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.train_from_iterator(_corpus(), trainer)
    return tokenizer


def number_ids(tokenizer: Tokenizer) -> list[int]:
    """Ids of the tokens '00' to '99' in order."""
    return [tokenizer.token_to_id(f'{number:02d}') for number in range(100)]


def _corpus() -> list[str]:
    rng = np.random.default_rng(0)
    texts = [' '.join(map(str, range(256)))] * 400 + list(_FIXED) * 400
    texts += [f'Task: {p}'.format(c) for group in words.INSTRUCTIONS.values() for p in group for c in COLOURS] * 40
    texts += [p.format(c) for group in words.QUESTIONS.values() for p in group for c in COLOURS] * 40
    for _ in range(400):
        layout = random_layout(rng)
        for verb in words.INSTRUCTIONS:
            intent = Intent(verb, '' if verb == 'stay' else str(rng.choice(list(layout.cubes))))
            goal = intent.goal(layout)
            for tip in (rng.uniform((0.4, -0.3, 0.1), (0.7, 0.3, 0.4)), np.zeros(3) if goal is None else goal):
                for kind in words.KINDS:
                    _, colour = words.ask(kind, layout, rng)
                    texts.append(words.answer(kind, layout, intent, tip, colour))
    return texts


if __name__ == '__main__':
    train().save(sys.argv[1] if len(sys.argv) > 1 else str(FILE))
