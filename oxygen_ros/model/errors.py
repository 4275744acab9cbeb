"""The one error of everything that belongs to a checkpoint."""


class CheckpointError(ValueError):
    """A checkpoint that is not loaded; one message naming what is wrong, the likely cause and the remedy."""
