"""Which code of the user's own a run was begun with: of its method, model, data set or partition rule.

A run that goes on after such code was changed mixes the rounds of both, and one that is done shows what the old code
made: own_code.json in its folder lets it tell.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

from ml_collections import ConfigDict

import semisfl_jax
from semisfl_jax import algorithms, data, models
from semisfl_jax.core import file_io
from semisfl_jax.core.errors import warn

FILE = 'own_code.json'


class Code(NamedTuple):
    """Where something of the user's is defined."""

    place: str  # name of the file, or 'notebook'
    digest: str


def of(config: ConfigDict) -> dict[str, Code]:
    """{"method 'mine'": code} of everything that a configuration names and the package does not bring.

    A digest is of the file of what was registered, of a notebook's function alone, without comments and layout. What
    has no source is left out.
    """
    parts = {
        f"method '{config.algorithm}'": getattr(algorithms.METHODS.get(config.algorithm), 'build', None),
        f"model '{config.model.name}'": models.EVERY_ARCHITECTURE.get(config.model.name),
        f"data set '{config.data.name}'": data.READERS.get(config.data.name),
        f"partition '{config.federation.partition}'": data.PARTITIONS.get(config.federation.partition),
    }
    found = {name: _code(thing) for name, thing in parts.items()}
    return {name: code for name, code in found.items() if code}


def check(folder: Path, config: ConfigDict) -> None:
    """Warns if the run in `folder` was begun with other code than a configuration names now."""
    if not (folder / FILE).is_file():
        return
    began, now = file_io.read_object(folder / FILE), of(config)
    changed = [f'{name} ({code.place})' for name, code in now.items() if began.get(name, code.digest) != code.digest]
    if changed:
        warn(
            f'the code of {", ".join(changed)} has changed since the run in {folder} began: its rounds so far are of '
            'the old code; choose another --workdir to train with the new one'
        )


def write(folder: Path, config: ConfigDict) -> None:
    """Writes the digests of a run that begins, if there are any."""
    if codes := of(config):
        file_io.write_json(folder / FILE, {name: code.digest for name, code in codes.items()})


def _code(thing: Any) -> Code | None:
    """None for what is the package's, or has no source."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    if thing is None:
        return None
    thing = thing if inspect.isroutine(thing) or inspect.isclass(thing) else type(thing)
    try:
        file = Path(inspect.getsourcefile(thing) or '')
        if file.is_relative_to(Path(semisfl_jax.__file__).parent):
            return None
        whole = file.is_file()
        text = file.read_text(encoding='utf-8') if whole else textwrap.dedent(inspect.getsource(thing))
        parsed = ast.dump(ast.parse(text))
    except (OSError, TypeError, ValueError, SyntaxError):  # built in, or typed into a shell
        return None
    return Code(file.name if whole else 'notebook', hashlib.sha256(parsed.encode()).hexdigest()[:16])
