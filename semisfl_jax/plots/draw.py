"""Every figure of runs, by name. `curves` and `inside` register theirs, and one of yours is registered likewise:

    @draw.of_run('mine', 'what it shows')
    def mine(run):
        figure, ax = style.figure()
        ...
        return figure

It is drawn by the command as well, in a file that --import names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from semisfl_jax.core.errors import UserError
from semisfl_jax.plots.collect import Groups


class Entry(NamedTuple):
    """A figure that can be drawn."""

    text: str  # what it shows, for --help
    draw: Callable[[Any], Any]  # groups or a run -> matplotlib Figure; raises UserError without data for it
    of_run: bool = False  # whether it is of one run, that of the lowest seed of a group, or has a line for every group
    slow: bool = False  # whether it takes more than a few seconds


FIGURES: dict[str, Entry] = {}


def of_groups(name: str, text: str, **kind: bool) -> Callable[[Callable], Callable]:
    """Registers a function of groups, as returned by `runs.group`, that draws a figure."""

    def register(draw: Callable) -> Callable:
        FIGURES[name] = Entry(text, draw, **kind)
        return draw

    return register


def of_run(name: str, text: str, slow: bool = False) -> Callable[[Callable], Callable]:
    """Registers a function of a Run that draws a figure."""
    return of_groups(name, text, of_run=True, slow=slow)


def figures(groups: Groups, names: Sequence[str] = ()) -> Iterator[tuple[str, Any]]:
    """Draws the figures `names`, of FIGURES, or all, of the groups of `runs.group`; call inside `style.context`.

    Gives pairs of a file name without extension and a matplotlib Figure, or the UserError explaining why there is none.
    The file name of a figure of one run has the group where there are several.
    """
    for name in names or FIGURES:
        of_files: dict[str, Any] = {name: groups}
        if FIGURES[name].of_run:
            endings = [f'-{slug(group)}' for group in groups] if len(groups) > 1 else ['']
            of_files = {name + end: runs[min(runs)] for end, runs in zip(endings, groups.values(), strict=True)}
        for file, data in of_files.items():
            try:
                yield file, FIGURES[name].draw(data)
            except UserError as error:
                yield file, error


def slug(text: str) -> str:
    """A group's label as part of a file name: 'algorithm=semisfl, k_s=20' -> 'semisfl_k_s-20'. Of a long one the
    beginning, with a mark of all of it, since a file's name has at most 255 bytes."""
    name = text.removeprefix('algorithm=').replace(', ', '_').replace('=', '-')
    name = ''.join(letter if letter.isalnum() or letter in '._-' else '-' for letter in name)
    return name if len(name) <= 100 else f'{name[:90]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}'
