"""Package versions that the numbers of a run may depend on."""

from __future__ import annotations

import importlib.metadata

import semisfl_jax

_PACKAGES = ('jax', 'jaxlib', 'flax', 'optax', 'orbax-checkpoint', 'numpy')


def installed() -> dict[str, str]:
    """Versions of this package and of those that it computes and saves with."""
    return {
        'semisfl_jax': semisfl_jax.__version__,
        **{name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def differing(there: dict[str, str]) -> list[str]:
    """Packages whose installed version differs from `there`: 'jax 0.9 (here 0.10)'."""
    here = installed()
    return [
        f'{name} {there.get(name, "unknown")} (here {here.get(name, "unknown")})'
        for name in sorted(here.keys() | there.keys())
        if here.get(name) != there.get(name)
    ]
