"""The one exception meant for the eyes of a user."""


class UserError(Exception):
    """Something the user can mend: one line that names the value, why it is wrong and what to do.

    `launch.py` prints the message alone, without a traceback, and exits with status 2.
    """
