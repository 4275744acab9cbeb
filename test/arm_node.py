"""The inference node as its executable runs it, with arm_engine in the engine process."""
from oxygen_ros.node.main import main


def make_engine(options, *args, **more):
    from arm_engine import make

    from oxygen_ros.worker.supervisor import Supervisor
    engine = Supervisor(options, *args, make=make, **more)
    if options.checkpoint == 'unstartable':
        engine.start = _no_thread
    return engine


def _no_thread():
    raise RuntimeError("can't start new thread")


if __name__ == '__main__':
    main(make_engine=make_engine)
