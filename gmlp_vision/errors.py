"""The errors a user can mend. The command line prints them on one line and exits with 2."""


class UserError(Exception):
    """What was given, what was expected, and what to do; no traceback is needed to understand it."""


class CheckpointError(UserError, RuntimeError):
    """A file does not hold the weights that were asked of it. The message names the tensors concerned."""
