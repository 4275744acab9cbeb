"""The real node under bad conditions: what feeds it, what watches it, and what goes wrong (`oxygen bench faults`)."""
