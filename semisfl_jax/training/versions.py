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


def differing(recorded: dict[str, str]) -> list[str]:
    """Packages whose installed version differs from `recorded`: 'jax 0.9 (now 0.10)'."""
    current = installed()
    return [
        f'{name} {recorded.get(name, "unknown")} (now {current.get(name, "unknown")})'
        for name in sorted(current.keys() | recorded.keys())
        if current.get(name) != recorded.get(name)
    ]
