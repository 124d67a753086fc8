"""The methods to compare, and the configuration keys that each needs."""

from __future__ import annotations

import dataclasses
from typing import Any

from semisfl_jax import algorithms


@dataclasses.dataclass(frozen=True)
class Method:
    """One form (variant) of a method."""

    algorithm: str
    form: str = ''
    keys: tuple[tuple[str, Any], ...] = ()  # of the configuration, overriding those of the case

    @property
    def name(self) -> str:
        """The name used on the command line and in the table."""
        return f'{self.algorithm}:{self.form}' if self.form else self.algorithm


def methods(names: tuple[str, ...] = ()) -> list[Method]:
    """Every form of every method of classification, or only the named ones: 'fedavg' (all its forms) or 'fedavg:uda'.

    Raises:
      KeyError: a name that no method has.
    """
    every = [
        Method(name, form, tuple({**method.needs, **keys}.items()))
        for name, method in algorithms.METHODS.items()
        if not method.dense
        for form, keys in method.variants.items()
    ]
    known_names = {name for method in every for name in (method.name, method.algorithm)}
    for name in names:
        if name not in known_names:
            raise KeyError(name)
    return [method for method in every if not names or {method.name, method.algorithm} & set(names)]


@dataclasses.dataclass(frozen=True)
class Case:
    """Settings shared by all methods. '' means the value of the configuration."""

    methods: tuple[Method, ...]
    data: str = 'fashion_mnist'  # a file in configs/
    model: str = ''
    augment: bool = True
    clients: int = 10
    batch_size: int = 64
    k_s: int = 10
    k_u: int = 10
    precision: str = 'tf32'
    convolution: str = 'auto'
    client_map: str = 'auto'
    client_chunk: int = 0
