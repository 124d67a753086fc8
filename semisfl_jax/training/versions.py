"""The versions that a run's numbers may depend on."""

from __future__ import annotations

import importlib.metadata

import semisfl_jax

_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')


def installed() -> dict[str, str]:
    """This package's version and those of the packages that it computes and saves with."""
    return {
        'semisfl_jax': semisfl_jax.__version__,
        **{name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def differing(there: dict[str, str]) -> list[str]:
    """What is installed here in another version than `there`: 'jax 0.9 (here 0.10)'."""
    here = installed()
    return [
        f'{name} {there.get(name, "unknown")} (here {here.get(name, "unknown")})'
        for name in sorted(here.keys() | there.keys())
        if here.get(name) != there.get(name)
    ]
