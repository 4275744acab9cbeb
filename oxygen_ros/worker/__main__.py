"""The engine process; only Supervisor starts it."""
from oxygen_ros.worker.worker import main

main()
