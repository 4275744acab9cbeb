"""``oxygen demo``: the simulated robot and the node, watched from outside over real DDS."""
