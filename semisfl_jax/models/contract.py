"""What the rest of the package takes for granted of a model, which may be a user's own, checked from shapes alone."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from semisfl_jax.core.errors import UserError, found
from semisfl_jax.core.types import Array
from semisfl_jax.models.dense_zoo import EncoderDecoder
from semisfl_jax.models.layers import NoPixels
from semisfl_jax.models.zoo import Architecture

BATCH = 2  # images for which shapes are computed: with one, a layer that mixes up images may look right


def architecture(name: str, made: Any) -> Architecture:
    """Makes sure that a function in ARCHITECTURES returns layers that can be cut.

    Args:
      name: of the model.
      made: what the function returned.

    Returns:
      `made`.

    Raises:
      UserError: it is not an Architecture, or its fields cannot be what they stand for.
    """
    whose = f"model '{name}', of a function in models.ARCHITECTURES:"
    if not isinstance(made, Architecture):
        raise UserError(f'{whose} it returns {found(made)}; return Architecture(layers, paper_split)')
    layers, split = made
    if not isinstance(layers, tuple | list) or len(layers) < 2:
        count = f'{len(layers)} layers' if isinstance(layers, tuple | list) else found(layers)
        raise UserError(f'{whose} its layers are {count}; use a tuple of at least two, one for each side of a cut')
    for place, layer in enumerate(layers):
        if isinstance(layer, nn.Module) or not callable(layer):
            raise UserError(
                f'{whose} layer {place} is {found(layer)}; use a function that takes a name and returns the layer, '
                'such as partial(ConvLayer, 16)'
            )
        if not isinstance(built := layer(name='probe'), nn.Module):
            raise UserError(f'{whose} layer {place} makes {found(built)}; let it return a Flax module')
    if not isinstance(split, Integral) or not 1 <= split < len(layers):
        raise UserError(
            f'{whose} paper_split={split!r}; use the number of layers at the client, 1 to {len(layers) - 1}'
        )
    return made


def modules(name: str, made: Any) -> EncoderDecoder:
    """Makes sure that a function in DENSE_ARCHITECTURES returns two modules, arguments as in `architecture`.

    Raises:
      UserError: it returns something else.
    """
    whose = f"model '{name}', of a function in models.DENSE_ARCHITECTURES:"
    if not isinstance(made, tuple) or len(made) != 2:
        raise UserError(f'{whose} it returns {found(made)}; return EncoderDecoder(encoder, decoder)')
    for what, module in zip(EncoderDecoder._fields, made, strict=True):
        if not isinstance(module, nn.Module):
            raise UserError(f'{whose} its {what} is {found(module)}; use a Flax module')
    return EncoderDecoder(*made)


def images(image_shape: Sequence[int]) -> jax.ShapeDtypeStruct:
    """The shape and type of a batch of images (H, W, C), for abstract evaluation."""
    return jax.ShapeDtypeStruct((BATCH, *image_shape), jnp.float32)


def shapes(module: nn.Module, inputs: Any) -> Any:
    """Shapes of the outputs of a piece, from those of its inputs, a pytree.

    Raises:
      NoPixels: images are so small that a map on the way has no pixel left.
    """

    def outputs(key: Array, x: Any) -> Any:
        with nn.intercept_methods(_watch):
            return module.init_with_output(key, x, train=False)[0]

    return jax.eval_shape(outputs, jax.random.key(0), inputs)


def _watch(call: Any, arguments: tuple, options: dict[str, Any], context: Any) -> Any:
    """A Flax interceptor that stops where no pixel is left, before a layer fails on it with an error of its own."""
    if context.method_name != '__call__':
        return call(*arguments, **options)
    _check_size([x for x in jax.tree.leaves(arguments) if hasattr(x, 'shape')])
    returned = call(*arguments, **options)
    _check_size([x for x in jax.tree.leaves(returned) if len(getattr(x, 'shape', ())) == 4])  # [B, H, W, C]
    return returned


def _check_size(arrays: list[Any]) -> None:
    for array in arrays:
        if any(length <= 0 for length in array.shape):
            raise NoPixels(f'no pixel is left of a map {array.shape}')


def check_features(features: Any, index: int, name: str) -> None:
    """Checks what crosses the cut after `index` layers, from its shapes.

    Raises:
      UserError: it is not one array with a row for each image.
    """
    if not _is_batch(features):
        raise UserError(
            f"the first {index} layers of model.name='{name}' (model.split_index) return {found(features)} for "
            f'{BATCH} images; return one array [B, ...], which crosses the cut'
        )


def check_logits(logits: Any, num_classes: int | None, name: str) -> None:
    """Checks what the last layer returns, from its shapes.

    Raises:
      UserError: it is not one array with a row for each image and, if `num_classes` is given, a column for each class.
    """
    wanted = '[B, K], a row for each image' if num_classes is None else f'[B, {num_classes}], one for each class'
    if not _is_batch(logits) or logits.ndim != 2 or num_classes not in (None, logits.shape[1]):
        raise UserError(
            f"the last layer of model.name='{name}' returns {found(logits)} for {BATCH} images; return logits " + wanted
        )


def check_maps(maps: Any, name: str) -> None:
    """Checks what an encoder returns, from its shapes.

    Raises:
      UserError: it is not a tuple of maps.
    """
    if not isinstance(maps, tuple) or not maps:
        raise UserError(
            f"the encoder of model.name='{name}' returns {found(maps)}; return a tuple of maps [B, h, w, c]"
        )
    for place, one in enumerate(maps):
        if not _is_batch(one) or one.ndim != 4:
            raise UserError(
                f"the encoder of model.name='{name}' returns {found(one)} in place {place} of its tuple, for "
                f'{BATCH} images; return maps [B, h, w, c]'
            )


def check_outputs(outputs: Any, wanted: int | None, name: str) -> None:
    """Checks what a decoder returns, from its shapes.

    Raises:
      UserError: it is not one map or, if `wanted` is given, has not that many numbers for every pixel.
    """
    if not _is_batch(outputs) or outputs.ndim != 4 or wanted not in (None, outputs.shape[3]):
        last = 'C' if wanted is None else wanted
        raise UserError(
            f"the decoder of model.name='{name}' returns {found(outputs)} for {BATCH} images; return one map "
            f'[B, h, w, {last}]'
        )


def _is_batch(value: Any) -> bool:
    return isinstance(value, jax.ShapeDtypeStruct) and value.shape[:1] == (BATCH,)
