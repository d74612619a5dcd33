"""What can go wrong in words of the user."""


class UsageError(Exception):
    """A wrong argument or a missing requirement. The message names it, its value and what is allowed; exit code 2."""


class Interrupted(Exception):
    """Ctrl-C: finished rows are kept; exit code 130."""
