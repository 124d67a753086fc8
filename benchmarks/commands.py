"""What the commands of the benchmarks share: their help, one line for a mistake, and the folder of what they write."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from absl import app, flags

from semisfl_jax.base.errors import UserError, exit_status, first_line


def run(command: Callable[[], None], text: str | None) -> None:
    """Runs the command of the main module, whose flags are those of absl, and exits.

    Exit status: 0; 2 after a mistake of the user, which is printed as one line; or that of `command`.

    Args:
      command: what to run once the flags are read.
      text: the help, which that of the flags follows.
    """
    app.run(lambda _: exit_status(command), flags_parser=partial(_read, text))


def _read(text: str | None, argv: list[str]) -> list[str]:
    if {'-h', '-help', '--help', '--helpfull', '--helpshort'} & set(argv):
        print(f'{text}{flags.FLAGS.main_module_help()}')
        sys.exit(0)
    if status := exit_status(partial(_check, argv)):
        sys.exit(status)
    return argv[:1]


def _check(argv: list[str]) -> None:
    try:
        words = flags.FLAGS(argv)[1:]
    except flags.Error as error:
        what = first_line(error).removeprefix('flag ')
        if missing := re.match(r'(--\w+)=None: Flag .* must have a value', what):
            what = f'{missing[1]} is missing'
        raise UserError(f'{what} (see --help)') from error
    if words:
        raise UserError(f"'{words[0]}' is not a flag (see --help)")


def markdown(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table as Markdown."""
    return '\n'.join(f'| {" | ".join(cells)} |' for cells in (titles, ['---'] * len(titles), *rows))


def require_torch() -> None:
    """Raises UserError where PyTorch, which is to be measured, is not installed."""
    if importlib.util.find_spec('torch') is None:
        raise UserError("torch is not installed: pip install -e '.[benchmark]', or measure with --no_torch")


def folder(out: str) -> Path:
    """The folder of --out, made if need be.

    Raises:
      UserError: it cannot be made, or nothing can be written there.
    """
    path = Path(out)
    try:
        path.mkdir(parents=True, exist_ok=True)
        reason = '' if os.access(path, os.W_OK | os.X_OK) else 'no permission'
    except FileExistsError:
        reason = 'it is a file'
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise UserError(f'cannot write to --out={out} ({reason}); choose another folder')
    return path
