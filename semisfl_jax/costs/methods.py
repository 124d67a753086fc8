"""What a round of every method sends and computes, each a function of true shapes.

The server's own link is not counted as a bottleneck, nor are protocol overheads. Float32 and int32 numbers travel as
they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from semisfl_jax.costs.pieces import Pieces
from semisfl_jax.errors import UserError
from semisfl_jax.hparams import HParams

NUMBER = 4  # bytes of a label, a count or a loss
RINGS = {'two_level': 2, 'single_ring': 1, 'off': 0}
PAPER_SIZES = {'alexnet': 127 * 2**20, 'vgg13': 508 * 2**20, 'vgg16': 528 * 2**20}  # of whole models, as the paper has


class Facts(NamedTuple):
    """What a method's prices depend on."""

    pieces: Pieces
    whole: int  # bytes at which a whole model is billed
    hparams: HParams
    active: int  # A
    index: int = 0  # round, 0-based
    labels: np.ndarray | bool = False  # [A], whether a client's batches hold labelled images
    steps: np.ndarray | int = 0  # [A], iterations
    images: np.ndarray | int = 0  # [A], images that a client trains on
    found: Mapping[str, float] | None = None  # the round's metrics; None: before it, at the most it can cost
    survivors: int = 0  # clients that `found` is about


class Visit(NamedTuple):
    """One client's part of a round. Numbers, or arrays [A] where clients differ."""

    down: float | np.ndarray = 0  # bytes before its first iteration
    step_up: float | np.ndarray = 0  # bytes of an iteration
    step_down: float = 0
    up: float | np.ndarray = 0  # bytes after its last iteration
    ask_up: float = 0  # bytes before its first iteration
    ask_work: float | np.ndarray = 0  # operations before its first iteration
    step_work: float | np.ndarray = 0  # operations of an iteration
    server_work: float = 0  # operations of the server in an iteration, for one client's rows
    idle_down: int = 0  # bytes to each client outside the cohort
    idle_up: int = 0
    order: str = 'apart'  # 'apart': clients wait for each other at the end | 'together': in every iteration | 'in_turn'


def supervised_work(facts: Facts, clustering: bool = False) -> float:
    """Operations of one supervised step of the server, with the contrastive loss or without."""
    h, pieces = facts.hparams, facts.pieces
    if not h.server_trains:
        return 0.0
    row = pieces.whole_work.train
    if clustering:
        references = h.server_batch_size + (h.queue_size if RINGS[h.queue] else 0)
        row += pieces.bottom_work.forward + _clustering(pieces, references)
    return h.server_batch_size * row


def _clustering(pieces: Pieces, references: int) -> float:
    """Operations for one row: student's projection and loss, teacher's key."""
    return pieces.head_work.train + pieces.head_work.forward + references * pieces.pair_work.train


def _cross_entity(facts: Facts, clustering: bool) -> Visit:
    """Two bottoms down; per iteration the features of student and teacher up and a gradient down; one bottom up."""
    h, pieces = facts.hparams, facts.pieces
    batch = h.batch_size * pieces.features
    server_row = pieces.top_work.train + pieces.top_work.forward
    if clustering:
        server_row += _clustering(pieces, facts.active * h.batch_size + RINGS[h.queue] * h.queue_size)
    return Visit(
        down=2 * pieces.bottom,
        step_up=2 * batch + NUMBER * h.labeled_rows * np.asarray(facts.labels),
        step_down=batch,
        up=pieces.bottom,
        step_work=h.batch_size * (pieces.bottom_work.train + pieces.bottom_work.forward),
        server_work=h.batch_size * server_row,
        order='together',
    )


def semisfl(facts: Facts) -> Visit:
    """Facts 1.1: the teacher's bottom is not sent back; clients with labels send those of each batch."""
    return _cross_entity(facts, clustering=True)


def fedswitch_sl(facts: Facts) -> Visit:
    """As SemiSFL: who labels changes which features are looked at, not what is sent."""
    return _cross_entity(facts, clustering=False)


def splitfed(facts: Facts) -> Visit:
    """The bottom down and up; per iteration features and labels up and the gradient down. Version 2 takes turns."""
    h, pieces = facts.hparams, facts.pieces
    batch = h.batch_size * pieces.features
    return Visit(
        down=pieces.bottom,
        step_up=batch + NUMBER * h.batch_size,
        step_down=batch,
        up=pieces.bottom,
        step_work=h.batch_size * pieces.bottom_work.train,
        server_work=h.batch_size * pieces.top_work.train,
        order='in_turn' if h.splitfed.version == 'v2' else 'together',
    )


def _local(facts: Facts, labels_itself: bool) -> Visit:
    """One model down, one up. `labels_itself`: each iteration starts with a forward pass that makes pseudo-labels."""
    h, work = facts.hparams, facts.pieces.whole_work
    row = work.train + (work.forward if labels_itself else 0)
    return Visit(down=facts.whole, up=facts.whole, step_work=h.batch_size * row)


def fedavg(facts: Facts) -> Visit:
    """One model down, one up."""
    return _local(facts, labels_itself=facts.hparams.local.objective != 'supervised')


def fedswitch(facts: Facts) -> Visit:
    """The student down, the teacher as well to those who label with it, the student up (facts 2.4).

    In 'switch' a client first labels the images of its round with the student, and sends one number to say that it
    needs the teacher, or not. Who does is not recorded, only how many: every client is billed the same share of a
    teacher. Before the round, and where nobody survived to tell, a whole one.
    """
    h, visit = facts.hparams, _local(facts, labels_itself=True)
    if h.fedswitch.mode != 'switch':
        return visit._replace(down=(2 if h.fedswitch.mode == 'teacher' else 1) * facts.whole)
    share = 0.0
    if facts.found is not None and facts.survivors:
        share = round(float(facts.found['student_labels']) * facts.survivors) / facts.survivors
    images = facts.hparams.batch_size * np.asarray(facts.steps)
    return visit._replace(
        down=(2 - share) * facts.whole,
        ask_up=NUMBER,
        ask_work=images * facts.pieces.whole_work.forward,
    )


def fedmatch(facts: Facts) -> Visit:
    """sigma + psi down, psi up, and sigma as well where clients have labels; in helper rounds the psi of helpers down.

    How many helpers there were is a mean over clients (`helpers_used`); before the round, all there can be. With
    `delta_threshold` the entries that were sent are billed, on average over the clients (`psi_sent`, `sigma_sent`);
    which ones they are travels free, as in the authors' count. Downloads are billed whole. Statistics of BatchNorm,
    which their model has not, go along once.
    """
    h, pieces = facts.hparams, facts.pieces
    work = pieces.whole_work
    part = facts.whole - pieces.statistics
    sends = (facts.index + 1) % h.fedmatch.helper_every == 0
    helpers = float(h.fedmatch.helpers)
    if facts.found is not None and facts.survivors:
        helpers = round(float(facts.found['helpers_used']) * facts.survivors) / facts.survivors
    helping = helpers if sends or h.fedmatch.helpers_persist else 0.0
    agreement = work.train + (work.train if helping else work.forward) + helping * work.forward
    sent = _sent(facts, 'psi', part) + (_sent(facts, 'sigma', part) if h.labeled_rows else 0)
    return Visit(
        down=facts.whole + part + (helpers if sends else 0) * part,
        up=sent + pieces.statistics,
        step_work=h.batch_size * agreement + h.labeled_rows * work.train,
    )


def _sent(facts: Facts, name: str, part: int) -> float:
    """Bytes that a client of FedMatch sends of a part of so many bytes: a mean, of whole entries in the sum."""
    if not facts.hparams.fedmatch.delta_threshold or facts.found is None or not facts.survivors:
        return part
    entries = round(float(facts.found[f'{name}_sent']) * facts.survivors * part / NUMBER)
    return NUMBER * entries / facts.survivors


def semifl(facts: Facts) -> Visit:
    """One model down, its parameters up. A client first labels all its images; without a confident one it sits out.

    Statistics of BatchNorm over the images of all clients, where they are taken so: once a round every client gets the
    server's parameters and sends statistics back, and the active ones get those of all. The time of clients outside
    the cohort is not counted, nor is the second pass, for evaluation. Who sits out is not recorded, only how many, and
    in local epochs the mean of the images trained on: every client is billed the mean.
    """
    h, pieces = facts.hparams, facts.pieces
    work, statistics = pieces.whole_work, pieces.statistics
    parameters = facts.whole - statistics
    everywhere = h.semifl.batch_norm_data == 'all' and statistics > 0
    trains, rows = 1.0, h.batch_size  # images in a step
    if h.local.epochs:  # of which the last one of a pass is not full
        rows = h.local.epochs * np.asarray(facts.images) / np.maximum(facts.steps, 1)
    if facts.found is not None and facts.survivors:
        trains = round((1 - float(facts.found['clients_sitting_out'])) * facts.survivors) / facts.survivors
        if h.local.epochs:
            rows = float(facts.found['client_images']) / max(float(np.mean(facts.steps)), 1.0)
    passes = 2 if everywhere else 1
    return Visit(
        down=facts.whole,
        ask_up=statistics if everywhere else 0,
        ask_work=passes * np.asarray(facts.images) * work.forward,
        up=trains * parameters,
        step_work=trains * rows * 2 * work.train,
        idle_down=parameters if everywhere else 0,
        idle_up=statistics if everywhere else 0,
    )


def supervised_only(facts: Facts) -> Visit:
    """Nothing is sent."""
    return Visit()


METHODS: dict[str, Callable[[Facts], Visit]] = {
    'semisfl': semisfl,
    'supervised_only': supervised_only,
    'fedavg': fedavg,
    'fedprox': fedavg,
    'fedswitch': fedswitch,
    'fedmatch': fedmatch,
    'semifl': semifl,
    'fedswitch_sl': fedswitch_sl,
    'splitfed': splitfed,
}
CLUSTERS = frozenset({'semisfl'})  # methods whose supervised steps have a contrastive loss
SPLIT = frozenset({'semisfl', 'fedswitch_sl', 'splitfed'})  # methods that cut the model
TEACHERS = frozenset({'semisfl', 'fedswitch_sl'})  # of those, the ones that send a teacher's bottom to clients


def price(name: str, facts: Facts) -> Visit:
    """What a client of method `name` sends, receives and computes in a round."""
    return METHODS[name](facts)


def server_step(name: str, facts: Facts) -> float:
    """Operations of one supervised step at the server of method `name`, 0 where the server makes none."""
    return 0.0 if name == 'splitfed' else supervised_work(facts, clustering=name in CLUSTERS)


def client_memory(pieces: Pieces, batch_size: int, teacher: bool, whole: bool = False) -> int:
    """Bytes that a client holds: its part of the model with gradient and momentum, the teacher's part if it gets one,
    and the activations of a batch that wait for the gradient. `whole`: the part is the whole model."""
    part = pieces.whole if whole else pieces.bottom
    statistics = pieces.statistics if whole else pieces.bottom - pieces.bottom_parameters
    activations = pieces.whole_activations if whole else pieces.bottom_activations
    return part + 2 * (part - statistics) + (part if teacher else 0) + batch_size * activations


def check(flat: dict[str, Any]) -> None:
    """Raises UserError where a flat configuration has no price: for its method, or for whole models of that name."""
    name, method = flat['model.name'], flat['algorithm']
    if method not in METHODS:
        raise UserError(f"algorithm='{method}' has no price; put one into semisfl_jax.costs.METHODS (docs/your-own.md)")
    if flat['cost.bill_model_size'] == 'paper' and name not in PAPER_SIZES:
        raise UserError(
            f"config.cost.bill_model_size='paper': the paper gives the sizes of {', '.join(PAPER_SIZES)}, but not of "
            f"{name}; use 'actual'"
        )
