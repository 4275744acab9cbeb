"""Measurement: workloads, the peers' way beside ours, counted floors, and what is lost above them."""
