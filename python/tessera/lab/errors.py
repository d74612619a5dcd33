"""The two ways in which a run ends early."""


class UsageError(Exception):
    """A wrong argument or a missing requirement; exit code 2. The message names it, its value and what is allowed."""


class Interrupted(Exception):
    """Ctrl-C: finished rows are kept; exit code 130."""
