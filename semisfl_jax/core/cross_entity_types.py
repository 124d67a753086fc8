"""What the functions of the cross-entity phase pass to each other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import optax

from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.labeling import Labeler
from semisfl_jax.core.losses import References
from semisfl_jax.core.queue import Memory
from semisfl_jax.core.types import Array, ClientAxis, Federation, SplitParams, Variables, Views
from semisfl_jax.models import SplitModel


class Rows(NamedTuple):
    """What the server has of the R = A' * B rows of an iteration: the input of a loss of one's own (`RowLosses`).

    The gradient goes through what is the student's; the rest is constant.
    """

    logits: Array  # [R, K] of the student, of strong views
    features: Array  # [R, D] the same rows as its bottoms sent them
    projections: Array | None  # [R, P] the same, projected to unit length; None without a queue
    teacher_logits: Array  # [R, K] of weak views, by the model that labels
    labels: Array  # [R] int32, pseudo-labels, or the client's own
    confident: Array  # [R] bool, whether the label may be learned
    labeled: Array  # [R] bool, whether it is the client's own
    references: References | None  # the teacher's keys of queue and batch; None without a queue


# A loss of one's own: values [R] by the name of their metric, which begins with 'loss_'. Every one is averaged over the
# rows of all participating clients, and their sum is trained on. Rows are of this device's clients only.
RowLosses = Callable[[Rows], Mapping[str, Array]]


class CrossEntity(NamedTuple):
    """What the phase is built from: the first argument of the functions below."""

    model: SplitModel
    views: Views
    hparams: HParams
    memory: Memory | None  # queue policy, or None for consistency regularization alone: no clustering, keys or queue
    axis: ClientAxis
    labeler: Labeler
    switched: bool  # whether each client's labeler may change from iteration to iteration
    row_losses: RowLosses | None = None  # in place of consistency regularization


class RoundContext(NamedTuple):
    """What stays the same during the iterations of a round, for A' local clients."""

    key: Array  # `round_key`
    teacher: SplitParams
    federation: Federation
    ids: Array  # [A'] int32
    weight: Array  # [A'] float32, 1 for a participating client
    mask: Array  # [A' * B] bool, their rows
    global_mask: Array  # [A * B] bool, those of all clients
    num_participating: Array  # [] float32, of all clients
    num_rows: Array  # [] float32, their rows
    tx: optax.GradientTransformation


class Batch(NamedTuple):
    """What the clients read in an iteration."""

    t: Array  # [] int32, number of the iteration
    rows: Array  # [A', B] int32, of `client_images`
    labeled: Array  # [A', B] bool, whether their clients know the labels


class AugmentedBatch(NamedTuple):
    """The views of a batch."""

    weak: Array  # [A', B, H, W, C] uint8, for the labels
    strong: Array  # the same, for the student


class Targets(NamedTuple):
    """What the rows of the local clients are trained toward."""

    keys: Array | None  # [A' * B, P] the teacher's projections, None without a queue
    logits: Array  # [A' * B, K] of weak views, by the model that labels
    labels: Array  # [A' * B] int32
    confident: Array  # [A' * B] bool
    labeled: Array  # [A' * B] bool, whether the label is the client's own
    mask: Array  # [A' * B] bool, rows of participating clients


class Exchange(NamedTuple):
    """The state that changes from iteration to iteration."""

    student: SplitParams  # `bottom` is w_{c,i} of every client, leading [A']
    teacher_bottom: Variables  # at the clients; leading [A'] if clients update it (Eq. 8)
    opt_state: optax.OptState
    memory: Any
    counts: Any  # the labeler's counts
