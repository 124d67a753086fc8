"""The look of every method and group of runs: title, color, marker and dash, the same in all figures.

A method has one look everywhere, given in its record: seven of Okabe and Ito's colors and others far from these,
distinguishable also with red-green color blindness; in grayscale, markers distinguish them. Methods of dense tasks,
which are in no figure with those of classification, are told apart from one another alone. All other groups,
including methods without a look, take theirs from a cycle of other colors, in the order in which a figure names them.
Variants of one method ('SemiSFL, k_s=20' and 'SemiSFL, k_s=40') share a color, and differ in marker and dash.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from semisfl_jax import algorithms

Dash = str | tuple[int, tuple[float, ...]]

DASHES: tuple[Dash, ...] = ('-', '--', '-.', ':', (0, (6.0, 1.2, 1.0, 1.2, 1.0, 1.2)))


class Look(NamedTuple):
    """The title of a group in the legend, and how it is drawn."""

    title: str
    color: str
    marker: str
    dash: Dash

    def line(self, points: int, place: int = 0) -> dict[str, Any]:
        """Arguments of `Axes.plot`: about eight of `points` have markers, staggered by `place` among lines."""
        step = max(1, points // 8)
        return {**self.point(), 'linestyle': self.dash, 'markevery': (place * step // 3 % step, step)}

    def point(self) -> dict[str, Any]:
        """The arguments that single points share with lines."""
        return {'color': self.color, 'marker': self.marker}


# Of all other groups: colors that no method has, chosen for contrast with each other under any color vision.
CYCLE = ('#661100', '#66AA00', '#5E8DEB', '#E8837E', '#7A1FA2', '#5F6B6D')
MARKERS = ('d', '*', 's', '^', 'o', 'D', 'v', 'X', 'P', '<', '>', 'p', 'h')


# What stands behind the name of a method, by a part of the label of its group.
MARKS = {'pseudo_labels=true': ' (oracle)', 'pseudo_labels=none': ' (no pseudo-labels)', 'pseudo_labels=method': ''}


def of_methods() -> dict[str, Look]:
    """The looks of all methods that have one, by name."""
    return {name: Look(method.label, *method.look) for name, method in algorithms.METHODS.items() if method.look}


def title(group: str) -> str:
    """The title of a group of `runs.group`: 'algorithm=semisfl, k_s=20' -> 'SemiSFL, k_s=20', and with
    'pseudo_labels=true' in it 'SemiSFL (oracle), k_s=20'."""
    method, *rest = group.removeprefix('algorithm=').split(', ')
    name = algorithms.METHODS[method].label if method in algorithms.METHODS else method
    if method in algorithms.METHODS:
        name += ''.join(mark for part, mark in MARKS.items() if part in rest)
        rest = [part for part in rest if part not in MARKS]
    return ', '.join([name, *rest])


def of(titles: Sequence[str]) -> dict[str, Look]:
    """The look of every group of a figure.

    Args:
      titles: of all its groups, so that each keeps its look in a panel that has only some of them.
    """
    methods = {look.title: look for look in of_methods().values()}
    colors, shapes, looks = itertools.cycle(CYCLE), _shapes(), {}
    families: dict[str, str] = {}  # text before the first comma, and without a mark -> color
    for name in dict.fromkeys(titles):
        whole = name.split(', ')[0]
        family = next((whole.removesuffix(mark) for mark in MARKS.values() if mark and whole.endswith(mark)), whole)
        if family in methods and family not in families and family == whole:
            looks[name] = methods[family]._replace(title=name)
        else:
            of_method = methods[family].color if family in methods else ''
            color = families.get(family) or of_method or next(colors)
            looks[name] = Look(name, color, *next(shapes))
        if family == whole or family in families:  # a method that follows its oracle keeps its own look
            families[family] = looks[name].color
    return looks


def _shapes() -> Iterator[tuple[str, Dash]]:
    """Pairs of marker and dash that no method has, cycled forever."""
    pairs = zip(itertools.cycle(MARKERS), itertools.cycle(DASHES), strict=False)
    taken = {(look.marker, look.dash) for look in of_methods().values()}
    free = [pair for pair in itertools.islice(pairs, len(MARKERS) * len(DASHES)) if pair not in taken]
    return itertools.cycle(free)
