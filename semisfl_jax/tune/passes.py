"""Forward and backward passes of all bottoms inside a loop, as a round has them: the part in which forms differ."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from semisfl_jax import parallel
from semisfl_jax.models import SplitModel
from semisfl_jax.parallel import compilation
from semisfl_jax.types import Array, Tree


def compile_passes(
    model: SplitModel,
    client_map: str,
    image: tuple[int, int, int],
    clients: int,
    batch_size: int,
    precision: str,
    steps: int,
) -> Callable[[], float]:
    """Compiles passes of the bottoms of `clients`, each with `batch_size` random images [H, W, C].

    Args:
      model: whose bottom; it has the form of its convolutions.
      client_map: how the bottoms are mapped, 'vmap' or 'loop'.
      image, clients, batch_size: shapes.
      precision: as config.precision.
      steps: passes of one call.

    Returns:
      A function that computes `steps` passes and returns the seconds for one.
    """
    bottom = jax.jit(lambda key: model.init(key).bottom)(jax.random.key(0))  # the rest is not computed
    images = jax.random.normal(jax.random.key(1), (clients, batch_size, *image))
    stacked = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (clients, *leaf.shape)), bottom)
    dropout = jax.random.key(2)
    run = parallel.client_map(how=client_map)(lambda variables, x: model.bottom(variables, x, dropout, True)[0])

    def squares(parameters: Any, rest: dict[str, Any], images: Array) -> Array | int:
        return sum(jnp.sum(features**2) for features in jax.tree.leaves(run({**rest, 'params': parameters}, images)))

    def passes(parameters: Tree, rest: dict[str, Any], images: Array) -> Tree:
        def step(parameters: Tree, _: None) -> tuple[Tree, None]:
            gradient = jax.grad(squares)(parameters, rest, images)
            return jax.tree.map(lambda p, g: p - 1e-9 * g, parameters, gradient), None

        return jax.lax.scan(step, parameters, length=steps)[0]

    rest = {name: leaf for name, leaf in stacked.items() if name != 'params'}
    arguments = stacked['params'], rest, images
    compiled = compilation.jit(passes, precision).lower(*arguments).compile()

    def seconds() -> float:
        start = time.perf_counter()
        jax.block_until_ready(compiled(*arguments))
        return (time.perf_counter() - start) / steps

    return seconds
