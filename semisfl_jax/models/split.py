"""Cuts models into the pure functions of a split model: at any layer index, or between encoder and decoder."""

import inspect
import math
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NoReturn

import flax.linen as nn
import jax
import jax.numpy as jnp

from semisfl_jax.base.errors import UserError, describe
from semisfl_jax.core import rng
from semisfl_jax.core.types import Array, SplitModel, SplitParams, Variables
from semisfl_jax.models.layers import CONVOLVED, FLOAT32, Compute, DenseLayer, resize
from semisfl_jax.models.zoo import Architecture, Maker

# Keeps the outputs of convolutions and products for a backward pass that recomputes everything else
_KEPT = jax.checkpoint_policies.save_from_both_policies(
    jax.checkpoint_policies.dots_saveable, jax.checkpoint_policies.save_only_these_names(CONVOLVED)
)
_CLIENT = 'client'  # the axis over which `tops` is mapped
_BATCH = 2  # images in shape checks: with one, a layer that mixes up images may look right


class Stack(nn.Module):
    """Layers in sequence, with their names in the uncut model."""

    layers: tuple[tuple[str, Maker], ...]

    @nn.compact
    def __call__(self, x: Array, train: bool) -> Array:
        """Applies the layers to x [B, ...]."""
        for name, layer in self.layers:
            x = layer(name=name)(x, train)
        return x


class ProjectionHead(nn.Module):
    """w_p: `mlp` D -> D -> ReLU -> P, `linear` D -> P, `none` the features themselves. Rows are normalized."""

    kind: str
    width: int
    compute: Compute = FLOAT32

    @nn.compact
    def __call__(self, features: Array) -> Array:
        """Maps features [B, D] to normalized float32 rows [B, P]."""
        x = features
        if self.kind == 'mlp':
            x = DenseLayer(x.shape[-1], compute=self.compute, name='hidden')(x, train=False)
        if self.kind != 'none':
            x = DenseLayer(self.width, activation=False, compute=self.compute, name='out')(x, train=False)
        x = x.astype(jnp.float32)
        # max(norm, 1e-12) as in PyTorch's normalize, written so that the gradient at 0 is 0 and not NaN
        return x * jax.lax.rsqrt(jnp.maximum(jnp.sum(x * x, axis=-1, keepdims=True), 1e-24))


def cut(
    architecture: Architecture,
    image_shape: tuple[int, int, int],
    split_index: int | None,
    projection: str,
    projection_dim: int,
    compute: Compute = FLOAT32,
    axes: tuple[str, ...] = (),
    num_classes: int | None = None,
    name: str = '',
) -> SplitModel:
    """Cuts a model after `split_index` layers.

    Args:
      architecture: the uncut model.
      image_shape: (H, W, C).
      split_index: layers at the client, 1 .. layers - 1; None takes the architecture's own.
      projection: 'mlp', 'linear' or 'none'.
      projection_dim: P; with 'none' P is D.
      compute: how the projection head computes, and what bottom and top keep for a backward pass. Features, logits and
        projections are always float32.
      axes: axes of a map around the caller that hold more clients; `tops` includes their rows in its statistics.
      num_classes: K, the number of logits that the model must have; None: any number.
      name: the model's name, for messages.

    Raises:
      UserError: a cut out of range, images too small for the pooling, or a model that does not return logits.
    """
    layers, named = architecture.layers, architecture.named
    index = architecture.paper_split if split_index is None else split_index
    if not 1 <= index < len(layers):
        key = f'paper_split={index}' if split_index is None else f'model.split_index={index}'
        raise UserError(
            f'{key}: this model has {len(layers)} layers and each side of the cut needs one; use 1 to {len(layers) - 1}'
        )
    for place, layer in enumerate(layers):
        check_layer(f"layer {place} of model.name='{name}'", layer)
    bottom, top = Stack(named[:index]), Stack(named[index:])
    spans_clients = any(getattr(layer(name='probe'), 'norm', False) for layer in layers[index:])
    top_of_client = Stack(tuple((name, _adapt_to_clients(layer, (_CLIENT, *axes))) for name, layer in named[index:]))
    head = ProjectionHead(projection, projection_dim, compute)
    run_piece = partial(run, recompute=compute.recompute)
    features, bottom_variables = shapes(bottom, batch(image_shape))
    check_output(f"the first {index} layers of model.name='{name}'", features)
    logits, top_variables = shapes(top, features)
    check_output(f"the last layer of model.name='{name}'", logits, (None, num_classes))
    check_variables(name, bottom_variables, top_variables)
    feature_map = features.shape[1:]
    feature_size = math.prod(feature_map)

    def init(key: Array) -> SplitParams:
        features = jnp.zeros((1, feature_size), jnp.float32)
        return SplitParams(
            bottom=filled(bottom.init(rng.fold(key, 'bottom'), jnp.zeros((1, *image_shape), jnp.float32), train=False)),
            top=filled(top.init(rng.fold(key, 'top'), features.reshape(1, *feature_map), train=False)),
            proj=filled(head.init(rng.fold(key, 'proj'), features)),
        )

    def run_bottom(
        variables: Variables, images: Array, key: Array | None, train: bool, rows: Array | None = None
    ) -> tuple[Array, Variables]:
        features, variables = run_piece(bottom, variables, images, key, train, rows)
        return features.reshape(images.shape[0], feature_size), variables

    def run_top(
        variables: Variables, features: Array, key: Array | None, train: bool, rows: Array | None = None
    ) -> tuple[Array, Variables]:
        return run_piece(top, variables, features.reshape(-1, *feature_map), key, train, rows)

    def run_tops(variables: Variables, features: Array, keys: Array) -> tuple[Array, Variables]:
        if 'batch_stats' in variables and not spans_clients:
            raise UserError(
                f"the server's part of model.name='{name}' has BatchNorm over the rows of one client; make it by "
                'layers.batch_norm, in a layer with the fields norm and axes (docs/own-model.md), or cut after it'
            )

        def one_client(rows: Array, key: Array) -> tuple[Array, Variables]:
            return run_piece(top_of_client, variables, rows.reshape(-1, *feature_map), key, True)

        return jax.vmap(one_client, out_axes=(0, None), axis_name=_CLIENT)(features, keys)

    def project(variables: Variables, features: Array) -> Array:
        rows: Any = head.apply(variables, features)  # Flax also declares a pair: outputs and mutable variables
        return rows

    return SplitModel(
        init=init,
        bottom=run_bottom,
        top=run_top,
        tops=run_tops,
        project=project,
        feature_size=feature_size,
        projection_size=feature_size if projection == 'none' else projection_dim,
    )


def run(
    module: nn.Module,
    variables: Variables,
    inputs: Any,
    key: Array | None,
    train: bool,
    rows: Array | None = None,
    recompute: bool = False,
    targets: Any = None,
) -> tuple[Any, Variables]:
    """Applies a piece of a model, as a `types.Piece`.

    Args:
      module: the piece.
      variables: its variables.
      inputs: its inputs, a pytree.
      key: draws dropout; None if the piece has none.
      train: updates the statistics and applies dropout.
      rows: [B] bool, the rows that count in BatchNorm's statistics; None: all.
      recompute: recomputes everything between convolutions and products in the backward pass instead of storing it, see
        `Compute`.
      targets: of a decoder of objects, which then returns losses; `key` draws its samples.

    Returns:
      outputs, a pytree whose floats are float32, and variables.
    """
    if not train:
        return _float32(module.apply(variables, inputs, train=False)), variables
    rngs = None if key is None else {'dropout': key}

    def training(variables: Variables, inputs: Any, rngs: dict[str, Array] | None) -> tuple[Any, Variables]:
        with nullcontext() if rows is None else nn.intercept_methods(_only_rows(rows)):
            options = {} if targets is None else {'targets': targets}
            return module.apply(variables, inputs, train=True, rngs=rngs, mutable=['batch_stats'], **options)

    apply = jax.checkpoint(training, policy=_KEPT) if recompute else training
    outputs, moved = apply(variables, inputs, rngs)
    return _float32(outputs), {**variables, **moved}


def _float32(tree: Any) -> Any:
    return jax.tree.map(lambda x: x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x, tree)


def _only_rows(rows: Array) -> Callable:
    """Returns a Flax interceptor that restricts BatchNorm's statistics to the valid `rows` [B]."""

    def intercept(
        call: Callable, arguments: tuple, options: dict[str, Any], context: nn.module.InterceptorContext
    ) -> Any:
        if isinstance(context.module, nn.BatchNorm) and context.method_name == '__call__':
            options = {**options, 'mask': rows.reshape(-1, *(1,) * (arguments[0].ndim - 1))}
        return call(*arguments, **options)

    return intercept


def _adapt_to_clients(layer: Maker, axes: tuple[str, ...]) -> Maker:
    """Adapts a layer to a map over clients: BatchNorm spans the mapped axes, a dense product the rows of all."""
    probe = layer(name='probe')
    if isinstance(probe, DenseLayer):
        return partial(layer, shared_by_clients=True)
    return partial(layer, axes=axes) if getattr(probe, 'norm', False) else layer


def filled(variables: Variables) -> Variables:
    """Returns `variables` with an empty 'params' if they have none, as those of a piece without parameters."""
    return {'params': {}, **variables}


# --- checks the shapes of pieces, which may be a user's, before computing anything


def batch(image_shape: Sequence[int]) -> jax.ShapeDtypeStruct:
    """Returns the shape and type of a batch of images (H, W, C), for abstract evaluation."""
    return jax.ShapeDtypeStruct((_BATCH, *image_shape), jnp.float32)


def shapes(module: nn.Module, inputs: Any) -> tuple[Any, Variables]:
    """Returns the shapes of a piece's outputs and variables, without computing them.

    Args:
      module: the piece.
      inputs: shapes of its inputs, a pytree.

    Raises:
      UserError: the images are too small for it.
    """
    return jax.eval_shape(
        lambda *arguments: module.init_with_output(*arguments, train=False), jax.random.key(0), inputs
    )


def is_nnx(module: Any) -> bool:
    """Returns whether `module` is a module of nnx, or a class of them; nnx, 0.2 s of imports, is there if one is."""
    kind, nnx = module if isinstance(module, type) else type(module), sys.modules.get('flax.nnx')
    return nnx is not None and issubclass(kind, nnx.Module)


def check_layer(what: str, layer: Any) -> None:
    """Raises UserError unless `layer(name=…)` makes a Flax Linen module that is called as module(x, train)."""
    made = getattr(layer, 'func', layer)  # of a partial
    fault = 'it is of nnx' if is_nnx(made) else ''
    try:
        inspect.signature(layer).bind(name='probe')
    except TypeError as error:
        fault = str(error)
    if fault:
        raise UserError(
            f'{what} is {describe(made)}, which cannot be called as layer(name=…) ({fault}); use partial(CLASS, …) of '
            'a flax.linen.Module, or partial(nnx.bridge.to_linen, CLASS, …) of an nnx.Module'
        )
    module = layer(name='probe')
    check_module(what, module)
    kind = getattr(module, 'nnx_class', type(module))  # of an nnx.Module in `nnx.bridge.ToLinen`
    try:
        inspect.signature(kind.__call__).bind(module, None, True)
        fits = not kind.__module__.startswith('flax.')  # BatchNorm and Dropout would take `train` for its contrary
    except TypeError:
        fits = False
    if not fits:
        raise UserError(
            f'{what} is {describe(kind)}, which is not called as module(x, train); wrap it in a module that is, as '
            'docs/own-model.md does'
        )


def check_module(what: str, module: Any) -> None:
    """Raises UserError unless `module` is a Flax Linen module: nothing else has variables to train."""
    if not isinstance(module, nn.Module):
        raise UserError(
            f'{what} is {describe(module)}, which would not train; return a flax.linen.Module, for an nnx.Module '
            'nnx.bridge.to_linen(CLASS, ARGUMENTS, name=name)'
        )


def check_variables(name: str, *pieces: Variables) -> None:
    """Raises UserError if a round would drop some of a model's variables, or has none to train.

    Args:
      name: the model's name, for messages.
      *pieces: shapes of the variables of each piece.
    """
    if others := sorted({collection for piece in pieces for collection in piece} - {'params', 'batch_stats'}):
        raise UserError(
            f"model.name='{name}' has variables in '{others[0]}', which a round neither trains nor updates; use "
            "'params' for what is trained, 'batch_stats' for statistics, and constants for the rest"
        )
    if not jax.tree.leaves([piece.get('params') for piece in pieces]):
        raise UserError(f"model.name='{name}' has no parameters to train; make them by self.param, or by Flax's layers")


def check_output(what: str, output: Any, shape: tuple[int | None, ...] | None = None) -> None:
    """Checks that an output is an array with a row for each image.

    Args:
      what: names the piece in messages.
      output: its output, as `shapes` returns it.
      shape: required shape [B, ...], in which None is any length; the first is B. None: any shape.

    Raises:
      UserError: it is not.
    """
    fits = isinstance(output, jax.ShapeDtypeStruct) and output.shape[:1] == (_BATCH,)
    if fits and shape is not None:
        fits = output.ndim == len(shape) and all(n in (None, m) for n, m in zip(shape, output.shape, strict=True))
    if not fits:
        wanted = ', '.join('?' if length is None else str(length) for length in (shape or (None, None))[1:])
        raise UserError(f'{what} returns {describe(output)} for {_BATCH} images; return one array [{_BATCH}, {wanted}]')


# --- models for dense tasks, cut between encoder and decoder
#
# An encoder is a module, called as `encoder(images, train)`, that returns a tuple of feature maps [B, h, w, c]; a
# decoder maps this tuple, called as `decoder(maps, train)`, to outputs [B, h', w', C], which are resized to the images.
# The tuple holds everything that crosses the cut, skip connections too. A decoder of objects (`detection.decoders`)
# returns predictions of any structure and, called with targets, a dict of losses.


def encoder_decoder(
    encoder: nn.Module,
    decoder: nn.Module,
    image_shape: tuple[int, int, int],
    recompute: bool = False,
    num_outputs: int | None = None,
    name: str = '',
) -> SplitModel:
    """Makes an encoder and a decoder the bottom and top of a split model.

    Features are the tuple of maps, and `feature_size` counts all numbers in them. Outputs that are one array are
    resized bilinearly to the images' size, [B, H, W, C]. Features and outputs are float32.

    Args:
      encoder: maps images to a tuple of maps.
      decoder: maps the tuple to outputs.
      image_shape: (H, W, C).
      recompute: as in `Compute`.
      num_outputs: C that the decoder must have; None: outputs are not checked.
      name: the model's name, for messages.

    Raises:
      UserError: the images are so small that the encoder leaves nothing of them, or a module does not return maps.
    """
    height, width, _ = image_shape
    image = jax.ShapeDtypeStruct((1, *image_shape), jnp.float32)
    check_module(f"the encoder of model.name='{name}'", encoder)
    check_module(f"the decoder of model.name='{name}'", decoder)
    features, encoder_variables = shapes(encoder, batch(image_shape))
    if not isinstance(features, tuple) or not features:
        raise UserError(f"the encoder of model.name='{name}' returns {describe(features)}; return a tuple of maps")
    for feature_map in features:
        check_output(f"the encoder of model.name='{name}'", feature_map, (None,) * 4)
    outputs, decoder_variables = shapes(decoder, features)
    if num_outputs is not None:
        check_output(f"the decoder of model.name='{name}'", outputs, (None, None, None, num_outputs))
    check_variables(name, encoder_variables, decoder_variables)
    maps = tuple(jax.ShapeDtypeStruct((1, *feature_map.shape[1:]), jnp.float32) for feature_map in features)

    def init(key: Array) -> SplitParams:
        # From shapes alone: a pass through a large encoder just to get its weights would take long.
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
        variables: Variables,
        maps: tuple[Array, ...],
        key: Array | None,
        train: bool,
        rows: Array | None = None,
        targets: Any = None,
    ) -> tuple[Any, Variables]:
        outputs, variables = run(decoder, variables, maps, key, train, rows, recompute, targets)
        return resize(outputs, height, width) if isinstance(outputs, Array) else outputs, variables

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
