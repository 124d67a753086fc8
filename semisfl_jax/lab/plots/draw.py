"""Every figure of runs, by name.

`curves` and `inside` register theirs, and one of yours is registered likewise:

    @draw.run_figure('mine', 'what it shows')
    def mine(run):
        figure, ax = style.figure()
        ...
        return figure

It is drawn by the command as well, in a file that --import names.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from semisfl_jax.base.errors import UserError
from semisfl_jax.lab.plots.collect import Groups


class Entry(NamedTuple):
    """A figure that can be drawn."""

    text: str  # what it shows, for --help
    draw: Callable[[Any], Any]  # groups or a run -> matplotlib Figure; raises UserError without data for it
    one_run: bool = False  # whether it is of one run, that of the lowest seed of a group, or has a line for every group
    slow: bool = False  # whether it takes more than a few seconds


FIGURES: dict[str, Entry] = {}


def groups_figure(name: str, text: str, **kind: bool) -> Callable[[Callable], Callable]:
    """Registers a function of groups, as from `runs.group`, that draws a figure.

    Args:
      name: of the figure.
      text: what it shows, for --help.
      **kind: fields of its Entry.
    """

    def register(draw: Callable) -> Callable:
        FIGURES[name] = Entry(text, draw, **kind)
        return draw

    return register


def run_figure(name: str, text: str, slow: bool = False) -> Callable[[Callable], Callable]:
    """Registers a function of a Run that draws a figure.

    Args:
      name: of the figure.
      text: what it shows, for --help.
      slow: whether it takes more than a few seconds.
    """
    return groups_figure(name, text, one_run=True, slow=slow)


def figures(
    groups: Groups, names: Sequence[str] = (), more: Mapping[str, Entry] = MappingProxyType({})
) -> Iterator[tuple[str, Any]]:
    """Draws figures of groups of runs; to be called inside `style.context`.

    Args:
      groups: as from `runs.group`.
      names: of FIGURES or `more`, () for all of FIGURES.
      more: further figures.

    Yields:
      The name of a file without its ending, with the group where a figure is of one run and there are several groups;
      and a matplotlib Figure, or the UserError that says why there is none.
    """
    for name in names or FIGURES:
        entry = FIGURES.get(name) or more[name]
        data_by_file: dict[str, Any] = {slug(name): groups}
        if entry.one_run:
            endings = [f'-{slug(group)}' for group in groups] if len(groups) > 1 else ['']
            data_by_file = {name + end: runs[min(runs)] for end, runs in zip(endings, groups.values(), strict=True)}
        for file, data in data_by_file.items():
            try:
                yield file, entry.draw(data)
            except UserError as error:
                yield file, error


def slug(text: str) -> str:
    """Makes a group's label part of a file name: 'algorithm=semisfl, k_s=20' -> 'semisfl_k_s-20'.

    Of a long one it takes the beginning, with a mark of all of it, since a file's name has at most 255 bytes.
    """
    name = text.removeprefix('algorithm=').replace(', ', '_').replace('=', '-')
    name = ''.join(letter if letter.isalnum() or letter in '._-' else '-' for letter in name)
    return name if len(name) <= 100 else f'{name[:90]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}'
