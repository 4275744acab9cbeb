"""One pi0.5 policy that moves and talks from one shared KV cache, as a ROS 2 node.

Importing this package needs neither ROS nor a GPU: only ``node``, and the programs that talk to it (``tabletop``,
``demo``, ``ask``, a part of ``bench``), import rclpy.
"""
from pkgutil import extend_path

# msg/ is generated at build time. When this source tree is ahead of the installed package on sys.path (pytest run
# in the source folder), this lets ``oxygen_ros.msg`` still be found in the installed one.
__path__ = extend_path(__path__, __name__)
