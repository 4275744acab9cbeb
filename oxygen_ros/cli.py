"""The one program, ``oxygen``: each verb is a typed function in a module that is imported only when it is asked for."""
from __future__ import annotations

import difflib
import importlib
import sys
from typing import NamedTuple

from oxygen_ros.missing import explained


class Verb(NamedTuple):
    """``target`` is 'module:function', or 'module:DICT' of functions for a verb that has verbs of its own.

    A function's parameters are its arguments and options (tyro), its docstring is the help, and what it returns is
    the exit code (None = 0).
    """

    target: str
    help: str


VERBS = {
    'demo': Verb('oxygen_ros.demo.run:demo', 'run a simulated robot and the node for a while, show it, write a report'),
    'check': Verb('oxygen_ros.check:check', 'tell whether a checkpoint can be served and fits a robot'),
    'ask': Verb('oxygen_ros.ask:ask', 'ask the running robot something and read the answer as it is made'),
    'bench': Verb('oxygen_ros.bench.run:VERBS', 'measure: modes side by side, floors, deadlines, faults, soak'),
    'tabletop': Verb('oxygen_ros.tabletop.cli:VERBS', 'make the data of the embedded robot, train it, evaluate it'),
}


def main(argv: list[str] | None = None) -> None:
    """Entry point of the console script and of ``ros2 run oxygen_ros oxygen``."""
    sys.exit(run(sys.argv[1:] if argv is None else argv))


def run(argv: list[str]) -> int:
    """Run one verb and return the exit code: 0 good, 1 the verb found something wrong, 2 not to be run like this."""
    name, *rest = argv or ['--help']
    if name in ('-h', '--help'):
        print(_usage())
        return 0
    if name not in VERBS:
        close = difflib.get_close_matches(name, VERBS, 1)
        hint = f'did you mean "oxygen {close[0]}"?' if close else 'see "oxygen --help"'
        return _refuse(f'no verb {name!r}: {hint}')
    try:
        with explained('oxygen'):
            return _call(name, rest) or 0
    except KeyboardInterrupt:
        return 130


def _call(name: str, argv: list[str]) -> int | None:
    import tyro
    module, attribute = VERBS[name].target.split(':')
    target = getattr(importlib.import_module(module), attribute)
    if isinstance(target, dict):
        return tyro.extras.subcommand_cli_from_dict(target, prog=f'oxygen {name}', args=argv)
    return tyro.cli(target, prog=f'oxygen {name}', args=argv)


def _usage() -> str:
    width = max(map(len, VERBS))
    verbs = '\n'.join(f'  {name:{width}}  {verb.help}' for name, verb in VERBS.items())
    return f'usage: oxygen VERB ...\n\nOne policy that moves and talks.\n\n{verbs}\n\noxygen VERB --help tells more.'


def _refuse(why: str) -> int:
    print(f'oxygen: {why}', file=sys.stderr)
    return 2


if __name__ == '__main__':
    main()
