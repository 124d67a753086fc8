"""Size and work of the pieces of a cut model, and building blocks of methods' prices. Nothing is compiled.

Bytes are those of float32 variables as transmitted, including BatchNorm's running statistics.

Operations are what XLA's cost analysis counts in a piece's program before any optimization, so they are the same on
every machine: two for each multiply-add of convolutions and products (for a padded convolution, only where the kernel
lies on the image), and one for each output number of all remaining instructions. The pieces have no loops, which the
analysis would count once, and no custom calls, which it would not count; convolutions are XLA's own ('native').
Optimizer steps, averages of weights and augmentation are excluded.

Activations are what autodiff keeps for one image from the forward pass for the backward pass.
"""

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from semisfl_jax import models
from semisfl_jax.base.errors import UserError
from semisfl_jax.core import losses, queue, rng, trees
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.types import Array
from semisfl_jax.models import SplitModel
from semisfl_jax.tasks import PARTS, Task, parts_of

_ROWS = 2  # in the measured batches; all operations are proportional to it
_REFERENCES = 4


class ModelSpec(NamedTuple):
    """The arguments of `models.build` for a model whose pieces are measured."""

    name: str
    num_classes: int  # K
    image_shape: tuple[int, int, int]  # H, W, C
    split_index: int | None  # layers at the client; None: the paper's cut
    projection: str
    projection_dim: int


class DenseSpec(NamedTuple):
    """The arguments of `models.build_dense` for a model whose pieces are measured."""

    name: str
    outputs: int
    image_shape: tuple[int, int, int]  # H, W, C
    output_stride: int
    task: str = ''  # one of objects
    stuff: int = 0

    @classmethod
    def of(cls, task: Task, name: str, image_shape: tuple[int, int, int], output_stride: int) -> 'DenseSpec':
        """Makes the arguments of the model of a task; tasks of maps with equally many outputs have equal ones."""
        return cls(name, task.outputs, image_shape, output_stride, task.name if task.name in PARTS else '', task.stuff)


class Work(NamedTuple):
    """Floating-point operations for one image."""

    forward: float  # in evaluation mode
    train: float  # forward and backward, in training mode


@dataclasses.dataclass(frozen=True)
class Pieces:
    """The measurements of a cut model."""

    bottom: int  # bytes of its variables
    top: int  # bytes of its variables
    statistics: int  # bytes of BatchNorm's running statistics, which bottom and top include
    bottom_parameters: int  # bytes of the bottom without its statistics
    feature_size: int  # D
    bottom_activations: int  # bytes for one image
    whole_activations: int  # bytes for one image, in bottom and top
    bottom_work: Work
    top_work: Work  # `train` includes the gradient of the features
    head_work: Work  # of the projection head; `train` includes that gradient; 0 in models for dense tasks
    pair_work: Work  # one anchor of a contrastive loss against one reference; 0 in models for dense tasks

    @property
    def whole_bytes(self) -> int:
        """Bytes of bottom and top."""
        return self.bottom + self.top

    @property
    def whole_work(self) -> Work:
        """Operations of bottom and top."""
        return Work(*(bottom + top for bottom, top in zip(self.bottom_work, self.top_work, strict=True)))

    @property
    def features(self) -> int:
        """Bytes of one image's features, float32 regardless of the model's precision."""
        return 4 * self.feature_size


def measure(spec: ModelSpec | DenseSpec) -> Pieces:
    """Measures the pieces of a model.

    Raises:
      UserError: `models.build` or `models.build_dense` rejects the specification.
    """
    if (key := _key(spec)) not in _measured:
        _measured[key] = _measure(spec)
    return _measured[key]


def take_over(specs: Iterable[ModelSpec | DenseSpec], pieces: Iterable[Pieces]) -> None:
    """Takes over what an earlier process has measured of some models."""
    _measured.update(zip(map(_key, specs), pieces, strict=True))


def _key(spec: ModelSpec | DenseSpec) -> tuple[Any, ModelSpec | DenseSpec]:
    # The builder is part of the key, because a notebook may register a new one under the same name
    known = models.DENSE_ARCHITECTURES if isinstance(spec, DenseSpec) else models.ARCHITECTURES
    return known.get(spec.name), spec


_measured: dict[tuple[Any, ModelSpec | DenseSpec], Pieces] = {}


def _measure(spec: ModelSpec | DenseSpec) -> Pieces:
    build: Callable[..., SplitModel] = models.build_dense if isinstance(spec, DenseSpec) else models.build
    model = build(**spec._asdict(), convolution='native')
    variables = jax.eval_shape(model.init, rng.root(0))
    both, has_head = (variables.bottom, variables.top), model.projection_size > 0
    key = jax.random.key(0)  # for dropout; its random bits are not floating-point work

    def bottom(variables: Any, x: Any, train: bool) -> Any:
        return model.bottom(variables, x, key, train)[0]

    def top(variables: Any, x: Any, train: bool) -> Any:
        if train and isinstance(spec, DenseSpec) and spec.task:
            return model.top(variables, x, key, train, targets=_no_objects(spec, len(x[0])))[0]
        return model.top(variables, x, key, train)[0]

    def whole(both: Any, x: Any, train: bool) -> Any:
        return top(both[1], bottom(both[0], x, train), train)

    images = _rows(_ROWS, spec.image_shape)
    features = jax.eval_shape(lambda v, x: bottom(v, x, False), variables.bottom, images)
    return Pieces(
        bottom=trees.nbytes(variables.bottom),
        top=trees.nbytes(variables.top),
        statistics=sum(trees.nbytes(piece) - trees.nbytes(piece['params']) for piece in both),
        bottom_parameters=trees.nbytes(variables.bottom['params']),
        feature_size=model.feature_size,
        bottom_activations=_activations(bottom, variables.bottom, spec.image_shape),
        whole_activations=_activations(whole, both, spec.image_shape),
        bottom_work=_work(bottom, variables.bottom, images, input_gradient=False),
        top_work=_work(top, variables.top, features),
        head_work=_work(lambda v, x, _: model.project(v, x), variables.proj, features) if has_head else Work(0.0, 0.0),
        pair_work=_pair_work(model.projection_size) if has_head else Work(0.0, 0.0),
    )


def _no_objects(spec: DenseSpec, count: int) -> dict[str, Array]:
    """Returns targets of images without objects, whose losses take the operations of others."""
    shapes = parts_of(spec.task, spec.outputs, spec.image_shape[0], objects=1, grid=8)
    return {part: jnp.zeros((count, *shape), kind) for part, (shape, kind) in shapes.items()}


def _rows(count: int, shape: tuple[int, ...]) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((count, *shape), jnp.float32)


def _operations(function: Callable, *arguments: Any) -> float:
    with jax.default_device(_cpu()):  # plugins for accelerators cannot analyze uncompiled programs
        analysis = jax.jit(function).lower(*arguments).cost_analysis()
    assert analysis is not None
    return float(analysis.get('flops', 0.0))


def _cpu() -> jax.Device:
    try:
        return jax.local_devices(backend='cpu')[0]
    except RuntimeError:
        platforms = jax.config.jax_platforms  # type: ignore[attr-defined]  # JAX adds this attribute when imported
        raise UserError(
            f"JAX_PLATFORMS={platforms} leaves out the CPU, on which costs are counted; add ',cpu', or unset it"
        ) from None


def _work(run: Callable, variables: Any, x: Any, input_gradient: bool = True) -> Work:
    """Measures the work per row of `run(variables, x, train)` for `x`, a pytree of arrays [_ROWS, ...].

    `input_gradient`: whether training includes the gradient of `x`.
    """

    def train(variables: Any, x: Any, gradient: Any) -> tuple[Any, tuple]:
        inputs = (variables, x) if input_gradient else (variables,)
        out, backward = jax.vjp(lambda v, x=x: run(v, x, True), *inputs)
        return out, backward(gradient)  # returns both, or XLA would drop what only the outputs need

    out = jax.eval_shape(lambda v, x: run(v, x, True), variables, x)  # losses, where there are objects
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
    """Measures bytes per image: the difference between two images and one, in which the weights cancel."""

    def residual_bytes(rows: int) -> int:
        backward = jax.eval_shape(lambda v, x: jax.vjp(lambda v: run(v, x, True), v)[1], variables, _rows(rows, shape))
        return trees.nbytes(backward)

    return residual_bytes(2) - residual_bytes(1)


# --- what a method sends and computes in a round: the types, and the parts that methods share
#
# Each method's file in `algorithms` has its price. The server's own link is no bottleneck, and protocol overhead is not
# counted. Float32 and int32 numbers are sent uncompressed.

NUMBER = 4  # bytes of a label, a count or a loss
PAPER_SIZES = {'alexnet': 127 * 2**20, 'vgg13': 508 * 2**20, 'vgg16': 528 * 2**20}  # whole models, from the paper


class CostContext(NamedTuple):
    """The inputs of a method's price."""

    pieces: Pieces
    whole_bytes: int  # at which a whole model is billed
    hparams: HParams
    active: int  # A
    index: int = 0  # type: ignore[assignment]  # round, 0-based; hides tuple.index
    labels: np.ndarray | bool = False  # [A], whether a client's batches hold labeled images
    steps: np.ndarray | int = 0  # [A], iterations
    images: np.ndarray | int = 0  # [A], images that a client trains on
    unlabeled: np.ndarray | int = 0  # [A], images without a label among them
    metrics: Mapping[str, float] | None = None  # of the round; None: before the round, for an upper bound
    survivors: int = 0  # clients that `metrics` covers
    task_pieces: tuple[Pieces, ...] = ()  # of each task's model
    tasks: np.ndarray | int = 0  # [A], the task of each client
    everyone: bool = False  # whether all clients take part in every round, and none can fail

    def mean(self, name: str, otherwise: float, scale: float = 1.0) -> float:
        """Returns a metric that is a mean over clients, rounded so that `scale` times the clients' sum is an integer.

        Args:
          name: the metric.
          otherwise: the value before the round, and if no client survived.
          scale: numbers that each client counts, such as the entries of an upload.
        """
        if self.metrics is None or not self.survivors:
            return otherwise
        return round(float(self.metrics[name]) * self.survivors * scale) / self.survivors


ORDERS = ('independent', 'synchronized', 'sequential')


class ClientCost(NamedTuple):
    """One client's part of a round. Fields are numbers, or arrays [A] where clients differ."""

    download: float | np.ndarray = 0  # bytes before its first iteration
    step_upload: float | np.ndarray = 0  # bytes per iteration
    step_download: float = 0
    upload: float | np.ndarray = 0  # bytes after its last iteration
    setup_upload: float = 0  # bytes before its first iteration
    setup_work: float | np.ndarray = 0  # operations before its first iteration
    step_work: float | np.ndarray = 0  # operations per iteration
    server_work: float = 0  # operations of the server per iteration, for one client's rows
    inactive_download: int = 0  # bytes to each client outside the cohort
    inactive_upload: int = 0
    # 'independent': clients wait for each other only at the end | 'synchronized': they wait in every iteration |
    # 'sequential': they train one after another
    order: str = 'independent'  # one of ORDERS


def supervised_work(context: CostContext, clustering: bool = False) -> float:
    """Returns the operations of one supervised step of the server, 0 if it takes none.

    Args:
      context: the inputs of a price.
      clustering: whether the step has a contrastive loss.
    """
    h, pieces = context.hparams, context.pieces
    if not h.server_trains:
        return 0.0
    row = pieces.whole_work.train
    if clustering:
        references = h.server_batch_size + (h.queue_size if queue.LEVELS[h.queue] else 0)
        row += pieces.bottom_work.forward + _clustering(pieces, references)
    return h.server_batch_size * row


def _clustering(pieces: Pieces, references: int) -> float:
    """Returns operations for one row: the student's projection and loss, and the teacher's key."""
    return pieces.head_work.train + pieces.head_work.forward + references * pieces.pair_work.train


def cross_entity(context: CostContext, clustering: bool) -> ClientCost:
    """Bills the cross-entity phase.

    Two bottoms go down; in every iteration the features of student and teacher go up and a gradient comes down; one
    bottom goes up. The teacher's bottom is not sent back. Clients with labels also send those of each batch.

    Args:
      context: the inputs of a price.
      clustering: whether the server computes the clustering regularization.
    """
    h, pieces = context.hparams, context.pieces
    batch = h.batch_size * pieces.features
    server_row = pieces.top_work.train + pieces.top_work.forward
    if clustering:
        server_row += _clustering(pieces, context.active * h.batch_size + len(queue.LEVELS[h.queue]) * h.queue_size)
    return ClientCost(
        download=2 * pieces.bottom,
        step_upload=2 * batch + NUMBER * h.labeled_rows * np.asarray(context.labels),
        step_download=batch,
        upload=pieces.bottom,
        step_work=h.batch_size * (pieces.bottom_work.train + pieces.bottom_work.forward),
        server_work=h.batch_size * server_row,
        order='synchronized',
    )


def whole_model(context: CostContext, pseudo_labels: bool = True) -> ClientCost:
    """Bills one model down and one up, and training of the whole model.

    Args:
      context: the inputs of a price.
      pseudo_labels: whether each iteration includes a forward pass that computes them.
    """
    h, work = context.hparams, context.pieces.whole_work
    row = work.train + (work.forward if pseudo_labels else 0)
    empty = h.labeled_rows * ~np.asarray(context.labels) if h.local.steps == 'longest' else 0
    return ClientCost(download=context.whole_bytes, upload=context.whole_bytes, step_work=(h.batch_size - empty) * row)


def client_memory(pieces: Pieces, batch_size: int, teacher: bool, whole: bool = False) -> int:
    """Returns the bytes that a client holds.

    They are its part of the model with gradient and momentum, the teacher's part if it gets one, and the activations of
    a batch kept for the gradient.

    Args:
      pieces: the measurements of the model.
      batch_size: images in a batch.
      teacher: whether the client gets a teacher.
      whole: whether its part is the whole model.
    """
    part = pieces.whole_bytes if whole else pieces.bottom
    statistics = pieces.statistics if whole else pieces.bottom - pieces.bottom_parameters
    activations = pieces.whole_activations if whole else pieces.bottom_activations
    return part + 2 * (part - statistics) + (part if teacher else 0) + batch_size * activations


def check_model(flat: Mapping[str, Any]) -> None:
    """Raises UserError if whole models of a flat configuration cannot be billed as it requests."""
    name = flat['model.name']
    if flat['cost.bill_model_size'] == 'paper' and name not in PAPER_SIZES:
        raise UserError(
            f"config.cost.bill_model_size='paper': the paper gives the sizes of {', '.join(PAPER_SIZES)}, but not of "
            f"{name}; use 'actual'"
        )
