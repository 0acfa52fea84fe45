"""The ways a command ends early for a reason worth one line."""


class InputError(ValueError):
    """What was asked for cannot be done; the message names the argument, the rule and the value."""


class Diverged(RuntimeError):
    """Training left the range where it can recover; the last state on disk is from before."""


class Interrupted(RuntimeError):
    """Training was asked to stop, and saved its state."""
