"""What a round of a method sends and computes, as functions of true shapes: the types and the parts shared by methods.

The price of a method is in its own file in `algorithms`. Neither the server's own link as a bottleneck nor protocol
overhead is counted. Float32 and int32 numbers are sent uncompressed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from semisfl_jax.core.errors import UserError
from semisfl_jax.core.hparams import HParams
from semisfl_jax.costs.pieces import Pieces

NUMBER = 4  # bytes of a label, a count or a loss
RINGS = {'two_level': 2, 'single_ring': 1, 'off': 0}
PAPER_SIZES = {'alexnet': 127 * 2**20, 'vgg13': 508 * 2**20, 'vgg16': 528 * 2**20}  # whole models, from the paper


class CostContext(NamedTuple):
    """What a method's price depends on."""

    pieces: Pieces
    whole_bytes: int  # at which a whole model is billed
    hparams: HParams
    active: int  # A
    index: int = 0  # type: ignore[assignment]  # round, 0-based; hides tuple.index
    labels: np.ndarray | bool = False  # [A], whether a client's batches hold labeled images
    steps: np.ndarray | int = 0  # [A], iterations
    images: np.ndarray | int = 0  # [A], images that a client trains on
    unlabeled: np.ndarray | int = 0  # [A], those of them without a label
    metrics: Mapping[str, float] | None = None  # of the round; None: before it, for an upper bound
    survivors: int = 0  # clients that `metrics` covers
    of_tasks: tuple[Pieces, ...] = ()  # dense tasks: of the model of each
    tasks: np.ndarray | int = 0  # [A], the task of each client
    everyone: bool = False  # whether all clients take part in every round, and none can fail

    def mean(self, name: str, otherwise: float, scale: float = 1.0) -> float:
        """A metric that is a mean over clients, rounded so that the sum over clients times `scale` is an integer.

        `otherwise` is returned before the round, and if no client survived.
        """
        if self.metrics is None or not self.survivors:
            return otherwise
        return round(float(self.metrics[name]) * self.survivors * scale) / self.survivors


ORDERS = ('independent', 'synchronized', 'sequential')


class ClientCost(NamedTuple):
    """One client's part of a round. Numbers, or arrays [A] where clients differ."""

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
    # 'independent': clients wait for each other only at the end | 'synchronized': in every iteration |
    # 'sequential': one trains after another
    order: str = 'independent'  # one of ORDERS


def supervised_work(context: CostContext, clustering: bool = False) -> float:
    """Operations of one supervised step of the server, 0 if it makes none; `clustering`: with a contrastive loss."""
    h, pieces = context.hparams, context.pieces
    if not h.server_trains:
        return 0.0
    row = pieces.whole_work.train
    if clustering:
        references = h.server_batch_size + (h.queue_size if RINGS[h.queue] else 0)
        row += pieces.bottom_work.forward + _clustering(pieces, references)
    return h.server_batch_size * row


def _clustering(pieces: Pieces, references: int) -> float:
    """Operations for one row: the student's projection and loss, and the teacher's key."""
    return pieces.head_work.train + pieces.head_work.forward + references * pieces.pair_work.train


def cross_entity(context: CostContext, clustering: bool) -> ClientCost:
    """The cross-entity phase: two bottoms down; per iteration the features of student and teacher up and a gradient
    down; one bottom up. The teacher's bottom is not sent back; clients with labels also send those of each batch."""
    h, pieces = context.hparams, context.pieces
    batch = h.batch_size * pieces.features
    server_row = pieces.top_work.train + pieces.top_work.forward
    if clustering:
        server_row += _clustering(pieces, context.active * h.batch_size + RINGS[h.queue] * h.queue_size)
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
    """One model down, one up. `pseudo_labels`: each iteration includes a forward pass that computes them."""
    h, work = context.hparams, context.pieces.whole_work
    row = work.train + (work.forward if pseudo_labels else 0)
    empty = h.labeled_rows * ~np.asarray(context.labels) if h.local.steps == 'longest' else 0
    return ClientCost(download=context.whole_bytes, upload=context.whole_bytes, step_work=(h.batch_size - empty) * row)


def client_memory(pieces: Pieces, batch_size: int, teacher: bool, whole: bool = False) -> int:
    """Bytes that a client holds: its part of the model with gradient and momentum, the teacher's part if it gets one,
    and the activations of a batch kept for the gradient. `whole`: the part is the whole model."""
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
