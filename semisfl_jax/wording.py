"""How messages to a user put names."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The name of `known` that is most like `word`, capital letters aside; '' where none is near."""
    names = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), names, n=1, cutoff=cutoff)
    return names[close[0]] if close else ''


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a sentence about an unknown name: '; did you mean …?', or '' where nothing is near."""
    name = nearest(word, known)
    return f"; did you mean '{name}'?" if name else ''


def use_one_of(word: str, known: Iterable[str]) -> str:
    """What to do about an unknown name: all that there are, and the one that was probably meant."""
    known = tuple(known)
    return f'use one of {", ".join(known)}{did_you_mean(word, known)}'
