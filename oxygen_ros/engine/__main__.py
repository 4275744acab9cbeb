"""The engine process; only Supervisor starts it."""
from oxygen_ros.engine.worker import main

main()
