"""How the work of many clients is laid out on the hardware. Methods get a map over clients and know no more."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax

ClientMap = Callable[..., Callable]  # called as client_map(function, in_axes=0), like jax.vmap


def client_map(chunk: int = 0) -> ClientMap:
    """A map over a leading client axis.

    Args:
      chunk: clients that are computed at a time, one chunk after another, so that memory stays bounded when a round
        has many clients; 0 computes all at once.

    Returns:
      A function with the meaning of `jax.vmap`.
    """
    return partial(in_chunks, chunk) if chunk else jax.vmap


def in_chunks(chunk: int, function: Callable, in_axes: int | tuple[int | None, ...] = 0) -> Callable:
    """`jax.vmap(function, in_axes)`, `chunk` clients at a time.

    What a chunk computes on its way is not kept for the gradient but computed again: memory for activations is that
    of one chunk, at the price of one more forward pass. A last chunk may be smaller. `chunk` 1 is a loop over
    clients in which nothing has a client axis, so no convolution is a grouped one.

    Args:
      chunk: at least 1.
      function: of one client.
      in_axes: 0 or None for each argument, as in `jax.vmap`.
    """

    def mapped(*arguments):
        axes = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(arguments)

        def one(own):
            own = iter(own)
            return function(*(next(own) if axis == 0 else x for x, axis in zip(arguments, axes, strict=True)))

        clients = tuple(x for x, axis in zip(arguments, axes, strict=True) if axis == 0)
        if chunk == 1:
            return jax.lax.map(jax.checkpoint(one), clients)
        return jax.lax.map(jax.checkpoint(one), clients, batch_size=chunk)

    return mapped
