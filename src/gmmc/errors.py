"""The two ways a command ends badly for a reason worth one line."""


class InputError(ValueError):
    """The caller asked for something that cannot be done; the message names the argument, the rule and the value."""


class Diverged(RuntimeError):
    """Training left the finite numbers; the last checkpoint on disk is from before."""
