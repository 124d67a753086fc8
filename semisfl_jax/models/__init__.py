# ruff: noqa: F401
"""Models by name: for classification, split at any layer, and for dense tasks, split between encoder and decoder."""

from collections import ChainMap
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import flax.linen as nn

from semisfl_jax.base import machine
from semisfl_jax.base.errors import UserError, describe, use_one_of
from semisfl_jax.core.types import SplitModel
from semisfl_jax.models import zoo
from semisfl_jax.models.dense_zoo import DENSE_ARCHITECTURES, EncoderDecoder
from semisfl_jax.models.detection.decoders import DECODERS
from semisfl_jax.models.layers import Compute, TooSmall
from semisfl_jax.models.lowerings import LOWERINGS
from semisfl_jax.models.split import cut, encoder_decoder, is_nnx
from semisfl_jax.models.weights import load_encoder, start_with

ARCHITECTURES = zoo.ARCHITECTURES
# A view of both, so that it shows models that users register later
EVERY_ARCHITECTURE: Mapping[str, Any] = ChainMap[str, Any](DENSE_ARCHITECTURES, ARCHITECTURES)
CONVOLUTIONS = ('auto', *LOWERINGS)


def build(
    name: str,
    num_classes: int,
    image_shape: tuple[int, int, int],
    split_index: int | None = None,
    projection: str = 'mlp',
    projection_dim: int = 128,
    convolution: str = 'auto',
    dtype: str = 'float32',
    axes: tuple[str, ...] = (),
    batch_norm_variance: str = 'biased',
    recompute: bool = False,
) -> SplitModel:
    """Builds the split model `name`.

    Args:
      name: a key of ARCHITECTURES.
      num_classes: K.
      image_shape: (H, W, C).
      split_index: layers at the client; None takes the architecture's own.
      projection: 'mlp', 'linear' or 'none', as in `split.cut`.
      projection_dim: P.
      convolution: one of CONVOLUTIONS; 'auto' is 'winograd' on a CPU and 'native' elsewhere (`models.lowerings`).
      dtype: as in `Compute`.
      axes: mapped axes that hold more clients, as in `split.cut`.
      batch_norm_variance: as in `Compute`.
      recompute: as in `Compute`.

    Raises:
      UserError: an unknown name, a cut out of range, images too small for the model, or a user's model that breaks the
        rules of docs/own-model.md.
    """
    _check_name(name, ARCHITECTURES)
    compute = Compute(dtype, _lowering(convolution), batch_norm_variance, recompute)
    made: Any = ARCHITECTURES[name]
    if not (isinstance(made, (type, nn.Module)) or is_nnx(made)):  # a whole module is refused as it is
        made = made(num_classes, compute)
    if not isinstance(made, zoo.Architecture):
        raise UserError(
            f"model.name='{name}' is {describe(made)}, which cannot be cut; register a function (number of classes, "
            'Compute) that returns its parts: Architecture((partial(BODY), partial(HEAD, num_classes)), paper_split=1)'
        )
    with _named(name, image_shape):
        return cut(made, image_shape, split_index, projection, projection_dim, compute, axes, num_classes, name)


def build_dense(
    name: str,
    outputs: int,
    image_shape: tuple[int, int, int],
    convolution: str = 'auto',
    dtype: str = 'float32',
    batch_norm_variance: str = 'biased',
    output_stride: int = 8,
    recompute: bool = False,
    task: str = '',
    stuff: int = 0,
) -> SplitModel:
    """Builds the model `name` for a dense task, cut after its encoder.

    Args:
      name: a key of DENSE_ARCHITECTURES.
      outputs: C, numbers per pixel, or `tasks.Task.outputs` of a task of objects.
      image_shape: (H, W, C).
      convolution: as in `build`.
      dtype: as in `Compute`.
      batch_norm_variance: as in `Compute`.
      output_stride: stride of the encoder's last map: 8, 16 or 32; `scene_net` has only 8.
      recompute: as in `Compute`.
      task: decides the decoder if it is a task of objects, a key of DECODERS; any other has the model's own.
      stuff: how many of the outputs are classes of stuff, in the task 'panoptic'.

    Raises:
      UserError: an unknown name, a stride that the model does not have, images too small for it, or a user's model that
        breaks the rules of docs/own-model.md.
    """
    _check_name(name, DENSE_ARCHITECTURES)
    compute = Compute(dtype, _lowering(convolution), batch_norm_variance, recompute)
    pieces = DENSE_ARCHITECTURES[name](outputs, compute, output_stride)
    if not (isinstance(pieces, tuple) and len(pieces) in (2, len(EncoderDecoder._fields))):
        raise UserError(f"model '{name}': the function returns {describe(pieces)}; return an encoder and a decoder")
    encoder, decoder, pyramid, scale = EncoderDecoder(*pieces)
    if make := DECODERS.get(task):
        if pyramid is None:
            raise UserError(
                f"config.data.tasks: model.name='{name}' has no maps for the objects of '{task}'; use another model, "
                'or let it return EncoderDecoder(encoder, decoder, pyramid=encoder)'
            )
        if compute.convolution == 'winograd' and convolution == 'auto':  # slower on these small maps
            compute = compute._replace(convolution='direct')
        encoder, decoder = pyramid, make(outputs, stuff, image_shape[:2], scale(image_shape[0]), compute)
    with _named(name, image_shape):
        return encoder_decoder(encoder, decoder, image_shape, recompute, None if make else outputs, name)


@contextmanager
def _named(name: str, image_shape: tuple[int, int, int]) -> Iterator[None]:
    """Turns `TooSmall` into an error that names the model and the size of the images."""
    try:
        yield
    except TooSmall as error:
        smaller = '' if name == 'small_cnn' or name in DENSE_ARCHITECTURES else ', or model.name=small_cnn'
        raise UserError(
            f"model.name='{name}', {image_shape[0]}x{image_shape[1]} pixels: images are too small for this model "
            f'({error}); use larger data.image_size or data.pad_to{smaller}'
        ) from error


def _check_name(name: str, models: Mapping[str, Any]) -> None:
    """Raises UserError unless `models` has the name."""
    if name not in models:
        known = 'for dense tasks' if name in DENSE_ARCHITECTURES else 'for classification'
        why = f'{known} only' if name in EVERY_ARCHITECTURE else 'unknown'
        raise UserError(f"model.name='{name}' is {why}; {use_one_of(name, models)}")


def _lowering(convolution: str) -> str:
    """Resolves 'auto' to a name in LOWERINGS."""
    if convolution != 'auto':
        return convolution
    return 'winograd' if machine.platform() == 'cpu' else 'native'
