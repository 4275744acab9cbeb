"""The inference node as its executable runs it, with arm_engine in the engine process."""
from oxygen_ros.node.main import main


def make_engine(*args, **options):
    from arm_engine import make

    from oxygen_ros.worker.supervisor import Supervisor
    return Supervisor(*args, make=make, **options)


if __name__ == '__main__':
    main(make_engine=make_engine)
