"""The inference node as its executable runs it, with arm_engine in the engine process."""
from functools import partial

from arm_engine import make

from oxygen_ros.engine.supervisor import Supervisor
from oxygen_ros.node.main import main

if __name__ == '__main__':
    main(make_engine=partial(Supervisor, make=make))
