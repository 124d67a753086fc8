"""Models for dense tasks, cut between encoder and decoder.

An encoder is a module, called as `encoder(images, train)`, that returns a tuple of feature maps [B, h, w, c]; a decoder
maps this tuple, called as `decoder(maps, train)`, to outputs [B, h', w', C], which are resized to the images. Whatever
crosses the cut is in the tuple, skip connections too.
"""

from __future__ import annotations

from typing import NoReturn

import flax.linen as nn
import jax
import jax.numpy as jnp

from semisfl_jax.core import rng
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.errors import found as words
from semisfl_jax.core.types import Array, SplitModel, SplitParams, Variables
from semisfl_jax.models.layers import resize
from semisfl_jax.models.split import batch, check_output, filled, run, shapes


def encoder_decoder(
    encoder: nn.Module,
    decoder: nn.Module,
    image_shape: tuple[int, int, int],
    recompute: bool = False,
    num_outputs: int | None = None,
    name: str = '',
) -> SplitModel:
    """Encoder and decoder as bottom and top of a split model.

    Features are the tuple of maps, and `feature_size` counts the numbers of all of them. Outputs are [B, H, W, C] at
    the images' size, bilinearly resized. Features and outputs are float32. `recompute` as in `Compute`; `num_outputs`:
    C, which the decoder must have, None: any; `name`: of the model, for messages. UserError: images so small that the
    encoder leaves nothing of them, or modules that do not return maps.
    """
    height, width, _ = image_shape
    image = jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)
    found = shapes(encoder, batch(image_shape))
    if not isinstance(found, tuple) or not found:
        raise UserError(f"the encoder of model.name='{name}' returns {words(found)}; return a tuple of maps")
    for feature_map in found:
        check_output(f"the encoder of model.name='{name}'", feature_map, (None,) * 4)
    check_output(f"the decoder of model.name='{name}'", shapes(decoder, found), (None, None, None, num_outputs))
    maps = tuple(jax.ShapeDtypeStruct((1, *feature_map.shape[1:]), jnp.float32) for feature_map in found)

    def init(key: Array) -> SplitParams:
        # From shapes alone: a pass through a large encoder, merely to start, would take long.
        return SplitParams(
            bottom=filled(encoder.lazy_init(rng.fold(key, 'bottom'), image, train=False)),
            top=filled(decoder.lazy_init(rng.fold(key, 'top'), maps, train=False)),
            proj=filled({}),
        )

    def bottom(
        variables: Variables, images: Array, key: Array | None, train: bool, rows: Array | None = None
    ) -> tuple[tuple[Array, ...], Variables]:
        return run(encoder, variables, images, key, train, rows, recompute)

    def top(
        variables: Variables, maps: tuple[Array, ...], key: Array | None, train: bool, rows: Array | None = None
    ) -> tuple[Array, Variables]:
        outputs, variables = run(decoder, variables, maps, key, train, rows, recompute)
        return resize(outputs, height, width), variables

    def missing(*_: object) -> NoReturn:
        raise UserError(
            'models for dense tasks have no projection head, and no top over the rows of many clients: use another '
            'method, or a model for classification'
        )

    return SplitModel(
        init=init,
        bottom=bottom,
        top=top,
        tops=missing,
        project=missing,
        feature_size=sum(feature_map.size for feature_map in maps),
        projection_size=0,
    )
