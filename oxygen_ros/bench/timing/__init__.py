"""Programs of ``oxygen bench ros``: a robot with real-sized pictures, and the node with a stop-watch."""
