"""Size and work of the pieces of a cut model, from their true shapes. Nothing is initialized or compiled.

Bytes are those of float32 variables as transmitted, including BatchNorm's running statistics.

Operations are what XLA's cost analysis counts in the program of a piece before any optimization, so that they are the
same on every machine: two for each multiply-add of convolutions and products (for a padded convolution, only where the
kernel lies on the image), and one for each output number of everything else. The pieces have no loops, which the
analysis would count once, and no custom calls, which it would not count; convolutions are XLA's own ('native').
Optimizer steps, averages of weights and augmentation are excluded.

Activations are what autodiff keeps for one image from the forward pass for the backward pass.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from semisfl_jax import models
from semisfl_jax.core import losses, rng, trees
from semisfl_jax.core.types import Array
from semisfl_jax.models import SplitModel

_ROWS = 2  # in the measured batches; everything is proportional to this
_REFERENCES = 4


class ModelSpec(NamedTuple):
    """What `models.build` needs for a model whose pieces are measured."""

    name: str
    num_classes: int  # K
    image_shape: tuple[int, int, int]  # H, W, C
    split_index: int | None  # layers at the client; None: as the paper cuts
    projection: str
    projection_dim: int


class DenseSpec(NamedTuple):
    """What `models.build_dense` needs, likewise."""

    name: str
    outputs: int
    image_shape: tuple[int, int, int]  # H, W, C
    output_stride: int


@dataclasses.dataclass(frozen=True)
class Work:
    """Floating-point operations for one image."""

    forward: float  # in evaluation mode
    train: float  # forward and backward, in training mode


@dataclasses.dataclass(frozen=True)
class Pieces:
    """The measurements of a cut model."""

    bottom: int  # bytes of its variables
    top: int  # likewise
    statistics: int  # bytes of BatchNorm's running statistics, part of the two above
    bottom_parameters: int  # bytes of the bottom without its statistics
    feature_size: int  # D
    bottom_activations: int  # bytes of one image
    whole_activations: int  # bytes of one image, of bottom and top
    bottom_work: Work
    top_work: Work  # `train` includes the gradient of the features
    head_work: Work  # of the projection head, likewise; 0 in models for dense tasks
    pair_work: Work  # one anchor of a contrastive loss against one reference; likewise

    @property
    def whole_bytes(self) -> int:
        """Bytes of bottom and top."""
        return self.bottom + self.top

    @property
    def whole_work(self) -> Work:
        """Operations of bottom and top."""
        return Work(
            self.bottom_work.forward + self.top_work.forward,
            self.bottom_work.train + self.top_work.train,
        )

    @property
    def features(self) -> int:
        """Bytes of one image's features, float32 regardless of the model's precision."""
        return 4 * self.feature_size


def measure(spec: ModelSpec) -> Pieces:
    """Measures the pieces of a model.

    Raises:
      UserError: as in `models.build`.
    """
    return _measured(models.ARCHITECTURES.get(spec.name), spec)


def measure_dense(spec: DenseSpec) -> Pieces:
    """Measures the pieces of a model for a dense task.

    Raises:
      UserError: as in `models.build_dense`.
    """
    return _measured_dense(models.DENSE_ARCHITECTURES.get(spec.name), spec)


# The builder is among the arguments because a notebook may register another one under the same name.
@functools.cache
def _measured(builder: Any, spec: ModelSpec) -> Pieces:
    return _measure(models.build(**spec._asdict(), convolution='native'), spec.image_shape)


@functools.cache
def _measured_dense(builder: Any, spec: DenseSpec) -> Pieces:
    return _measure(models.build_dense(**spec._asdict(), convolution='native'), spec.image_shape)


def _measure(model: SplitModel, image_shape: tuple[int, int, int]) -> Pieces:
    variables = jax.eval_shape(model.init, rng.root(0))
    both = variables.bottom, variables.top
    images = _rows(_ROWS, image_shape)
    features = jax.eval_shape(lambda v, x: _bottom(model)(v, x, False), variables.bottom, images)
    has_head = model.projection_size > 0
    return Pieces(
        bottom=trees.nbytes(variables.bottom),
        top=trees.nbytes(variables.top),
        statistics=sum(trees.nbytes(piece) - trees.nbytes(piece['params']) for piece in both),
        bottom_parameters=trees.nbytes(variables.bottom['params']),
        feature_size=model.feature_size,
        bottom_activations=_activations(_bottom(model), variables.bottom, image_shape),
        whole_activations=_activations(_whole(model), both, image_shape),
        bottom_work=_work(_bottom(model), variables.bottom, images, of_inputs=False),
        top_work=_work(_top(model), variables.top, features),
        head_work=_work(_head(model), variables.proj, features) if has_head else Work(0.0, 0.0),
        pair_work=_pair_work(model.projection_size) if has_head else Work(0.0, 0.0),
    )


def _key() -> Array:
    return jax.random.key(0)  # for dropout; its random bits are not floating-point work


def _bottom(model: SplitModel) -> Callable:
    return lambda variables, x, train: model.bottom(variables, x, _key(), train)[0]


def _top(model: SplitModel) -> Callable:
    return lambda variables, x, train: model.top(variables, x, _key(), train)[0]


def _head(model: SplitModel) -> Callable:
    return lambda variables, x, train: model.project(variables, x)


def _whole(model: SplitModel) -> Callable:
    return lambda both, x, train: _top(model)(both[1], _bottom(model)(both[0], x, train), train)


def _rows(count: int, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((count, *shape), jnp.float32)


def _operations(function: Callable, *arguments: Any) -> float:
    analysis = jax.jit(function).lower(*arguments).cost_analysis()
    assert analysis is not None
    return float(analysis.get('flops', 0.0))


def _work(run: Callable, variables: Any, x: Any, of_inputs: bool = True) -> Work:
    """Work of `run(variables, x, train)` for the shapes of `x`, a pytree of arrays [_ROWS, ...], per row.

    `of_inputs`: includes the gradient of `x`.
    """

    def train(variables: Any, x: Any, gradient: Any) -> tuple[Any, tuple]:
        inputs = (variables, x) if of_inputs else (variables,)
        out, backward = jax.vjp(lambda v, x=x: run(v, x, True), *inputs)
        return out, backward(gradient)  # both, or XLA would drop what only the outputs need

    out = jax.eval_shape(lambda v, x: run(v, x, False), variables, x)
    forward = _operations(lambda v, x: run(v, x, False), variables, x)
    return Work(forward / _ROWS, _operations(train, variables, x, out) / _ROWS)


def _pair_work(width: int) -> Work:
    def rows(anchors: Array, keys: Array) -> Array:
        count = keys.shape[0]
        labels, valid = jnp.zeros(count, jnp.int32), jnp.ones(count, bool)
        references = losses.References(keys, labels, valid, valid)
        return losses.contrastive_rows(anchors, labels[:_ROWS], references, 1.0)

    def train(anchors: Array, keys: Array, gradient: Array) -> tuple[Array, tuple[Array]]:
        out, backward = jax.vjp(lambda anchors: rows(anchors, keys), anchors)
        return out, backward(gradient)

    anchors, keys = _rows(_ROWS, (width,)), _rows(_REFERENCES, (width,))
    pairs = _ROWS * _REFERENCES
    return Work(_operations(rows, anchors, keys) / pairs, _operations(train, anchors, keys, _rows(_ROWS, ())) / pairs)


def _activations(run: Callable, variables: Any, shape: tuple[int, ...]) -> int:
    """Bytes per image: the difference between two images and one, in which the weights, kept as well, cancel."""

    def residual_bytes(rows: int) -> int:
        backward = jax.eval_shape(lambda v, x: jax.vjp(lambda v: run(v, x, True), v)[1], variables, _rows(rows, shape))
        return trees.nbytes(backward)

    return residual_bytes(2) - residual_bytes(1)
