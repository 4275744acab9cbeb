"""Everything that is said on the tabletop: instructions in several phrasings, seeds, and the true answers.

An answer is a pure function of the layout, the intent and the fingertip, so that labels can be made for any picture.
"""
from __future__ import annotations

import numpy as np

from oxygen_ros.tabletop.task import COLOURS, REACHED, Intent, Layout

INSTRUCTIONS = {
    'touch': ('touch the {} cube', 'touch the {} one', 'reach for the {} cube', 'go to the {} cube'),
    'point': ('point at the {} cube', 'point at the {} one', 'show me the {} cube'),
    'stay': ('stay', 'stay where you are', 'do not move', 'wait'),
}
NARRATION_SEED = 'Subtask: '
MEMORY_SEED = 'Memory: '
QUESTIONS = {
    'where': ('where is the {} cube?', 'where is the {} one?', 'tell me where the {} cube is'),
    'doing': ('what are you doing?', 'what is the robot doing?', 'tell me what you are doing'),
    'count': ('how many cubes are there?', 'how many cubes do you see?'),
    'distance': ('how far is the {} cube?', 'how far is the {} one?'),
}
KINDS = ('narration', 'memory', *QUESTIONS)
SIDEWAYS = 0.04     # sideways distance from which a motion is called left or right, m


def instruction(intent: Intent, rng: np.random.Generator) -> str:
    """One of the phrasings of an intent; three in ten begin with a capital letter."""
    return _spoken(INSTRUCTIONS[intent.verb], intent.colour, rng)


def question_seed(question: str) -> str:
    """The seed that makes the model answer ``question``."""
    return f'{question}\nAnswer: '


def ask(kind: str, layout: Layout, rng: np.random.Generator) -> tuple[str, str]:
    """(seed, colour asked for or '') of one speech kind; colours that are not on the table are asked for too."""
    if kind == 'narration':
        return NARRATION_SEED, ''
    if kind == 'memory':
        return MEMORY_SEED, ''
    colours = {'where': COLOURS, 'distance': list(layout.cubes)}.get(kind, [''])
    colour = str(rng.choice(colours))
    return question_seed(_spoken(QUESTIONS[kind], colour, rng)), colour


def answer(kind: str, layout: Layout, intent: Intent, tip: np.ndarray, colour: str = '') -> str:
    """The true text for one speech kind. ``tip``: fingertip [3] in m; ``colour``: the cube that is asked for."""
    match kind:
        case 'narration':
            return _narration(layout, intent, tip)
        case 'memory':
            return ', '.join(f'{colour} {layout.side(colour)}' for colour in COLOURS if colour in layout.cubes)
        case 'where':
            if colour not in layout.cubes:
                return 'not on the table'
            side = layout.side(colour)
            return f'{layout.depth(colour)}, ' + ('in the middle' if side == 'middle' else f'on the {side}')
        case 'doing':
            if intent.verb == 'stay':
                return 'waiting'
            doing = 'going to' if not _there(layout, intent, tip) else _DONE[intent.verb]
            return f'{doing} the {intent.colour} cube'
        case 'count':
            return {3: 'three', 4: 'four'}[len(layout.cubes)]
        case 'distance':
            x, y = (round(100 * value) for value in layout.cubes[colour])
            return f'{x} cm ahead, {abs(y)} cm {"left" if y > 0 else "right"}'
    raise ValueError(f'unknown kind of speech {kind!r}: one of {", ".join(KINDS)}')


_DONE = {'touch': 'touching', 'point': 'pointing at'}


def _narration(layout: Layout, intent: Intent, tip: np.ndarray) -> str:
    goal = intent.goal(layout)
    if goal is None:
        return 'staying'
    if _there(layout, intent, tip):
        return f'{"at" if intent.verb == "touch" else "pointing at"} the {intent.colour} cube'
    sideways = goal[1] - tip[1]
    way = 'ahead' if abs(sideways) < SIDEWAYS else 'left' if sideways > 0 else 'right'
    return f'moving {way} to the {intent.colour} cube'


def _there(layout: Layout, intent: Intent, tip: np.ndarray) -> bool:
    return bool(np.linalg.norm(intent.goal(layout) - tip) <= REACHED)


def _spoken(phrasings: tuple[str, ...], colour: str, rng: np.random.Generator) -> str:
    text = str(rng.choice(phrasings)).format(colour)
    return text.capitalize() if rng.random() < 0.3 else text
