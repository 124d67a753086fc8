"""Maps over clients and over trials: all at once, in chunks, or one after another."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax

from semisfl_jax.core import machine

CLIENT_MAPS = ('auto', 'vmap', 'loop')
TRIAL_MAPS = ('auto', 'vmap', 'loop')

ClientMap = Callable[..., Callable]  # called as client_map(function, in_axes=0), like jax.vmap


def client_map(chunk: int = 0, how: str = 'auto') -> ClientMap:
    """A map over a leading client axis.

    Args:
      chunk: number of clients computed at a time, one chunk after another, so that memory stays bounded when a round
        has many clients; 0 keeps the activations of all. Takes precedence over `how`.
      how: 'vmap': all clients in one batched computation; 'loop': one after another, so that a client's intermediate
        results stay in the processor's cache, and no convolution has kernels of several clients; 'auto': 'loop' on a
        CPU, 'vmap' elsewhere.

    Returns:
      A function with the semantics of `jax.vmap`.
    """
    if chunk:
        return partial(in_chunks, chunk)
    return _MAPS[_of_platform() if how == 'auto' else how]


def sequential_map(function: Callable, in_axes: int | tuple[int | None, ...] = 0) -> Callable:
    """`jax.vmap(function, in_axes)`, one client after another."""

    def mapped(*arguments: Any) -> Any:
        one, clients = _of_one_client(function, in_axes, arguments)
        return jax.lax.map(one, clients)

    return mapped


def in_chunks(chunk: int, function: Callable, in_axes: int | tuple[int | None, ...] = 0) -> Callable:
    """`jax.vmap(function, in_axes)`, `chunk` clients at a time.

    Intermediate results of a chunk are not kept for the gradient but recomputed: memory for activations is that of one
    chunk, at the cost of an extra forward pass. The last chunk may be smaller. `chunk` 1 is a loop over clients in
    which nothing has a client axis, so no convolution is grouped.

    Args:
      chunk: at least 1.
      function: of one client.
      in_axes: 0 or None for each argument, as in `jax.vmap`.
    """

    def mapped(*arguments: Any) -> Any:
        one, clients = _of_one_client(function, in_axes, arguments)
        return jax.lax.map(jax.checkpoint(one), clients, batch_size=None if chunk == 1 else chunk)

    return mapped


def _of_one_client(
    function: Callable, in_axes: int | tuple[int | None, ...], arguments: tuple
) -> tuple[Callable[[tuple], Any], tuple]:
    """The function with its shared arguments bound, and the remaining arguments, which have a client axis."""
    axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(arguments)

    def one(client_arguments: tuple) -> Any:
        own = iter(client_arguments)
        return function(*(next(own) if axis == 0 else x for x, axis in zip(arguments, axes, strict=True)))

    return one, tuple(x for x, axis in zip(arguments, axes, strict=True) if axis == 0)


def trial_map(name: str) -> tuple[str, ClientMap]:
    """A map over trials, which are independent of each other, inside one program.

    'vmap' batches them into one program: every operation processes all trials at once. Loops whose length differs
    between trials run as long as the longest, and the surplus iterations of the others are discarded. 'loop' computes
    one trial after another, in the activation memory of one, with the operations of a single-trial program: bitwise
    equal as far as XLA compiles them alike (observed on CPUs except with `pre_rounds`, whose branch changes rounding).

    Args:
      name: 'vmap', 'loop' or 'auto': loop on a CPU, which one trial keeps busy, vmap elsewhere. (Measured only on
        CPUs.)

    Returns:
      'vmap' or 'loop', and a function with the semantics of `jax.vmap`, whose `in_axes` are a tuple of 0 and None.
    """
    name = _of_platform() if name == 'auto' else name
    return name, _MAPS[name]


def _of_platform() -> str:
    return 'loop' if machine.platform() == 'cpu' else 'vmap'


_MAPS: dict[str, ClientMap] = {'vmap': jax.vmap, 'loop': sequential_map}
