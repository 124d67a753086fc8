"""The one exception meant for the eyes of a user."""

from semisfl_jax.wording import one_line


class UserError(Exception):
    """Something the user can mend: one line that names the value, why it is wrong and what to do.

    `launch.py` prints the message alone, without a traceback, and exits with status 2. Long values in it are cut short.
    """

    def __str__(self) -> str:
        return one_line(super().__str__())
