"""Every possible cut of a model, priced before any training."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from semisfl_jax import costs, data
from semisfl_jax.core.wording import columns
from semisfl_jax.costs import CostContext, CostModel
from semisfl_jax.models.layers import Compute
from semisfl_jax.models.zoo import ARCHITECTURES

WHOLE = 'whole'  # name of the row of the uncut model
_ROUNDS = 10  # over which simulated seconds are averaged
_GIB, _MIB = 2**30, 2**20


class Price(NamedTuple):
    """One cut. Bytes and operations are those of one client over a complete round, unless noted."""

    cut: int | str  # layers at the client, or WHOLE
    features: int  # D
    bottom: int  # bytes of the client's part of the model
    down: int  # bytes in a round
    up: int
    all_clients: int  # bytes of all active clients per round, up and down
    client_flop: float  # of one iteration
    server_flop: float  # of one iteration, for all active clients
    memory: int  # bytes at the client
    seconds: float  # of a round, simulated, mean of the first ten rounds


class Pricing(NamedTuple):
    """The cuts of one model under one configuration."""

    title: str
    chosen: int  # the configuration's cut
    cuts: list[Price]
    whole: Price  # FedAvg with FixMatch on the same clients: the whole model down and up


def price_all(model: CostModel, k_s: int, name: str, teacher: bool, tell: Callable[[str], None]) -> Pricing:
    """Prices every cut.

    Args:
      model: the costs of a split method; its own cut is marked.
      k_s: supervised steps of a round.
      name: of the data set, for the title.
      teacher: whether clients hold the teacher's part as well.
      tell: is told which cut comes next.
    """
    spec = model.model
    architecture = ARCHITECTURES[spec.name](spec.num_classes, Compute())
    chosen = architecture.paper_split if spec.split_index is None else spec.split_index
    last, cuts = len(architecture.layers) - 1, []
    for index in range(1, last + 1):
        tell(f'pricing cut {index} of {last} …')
        cuts.append(_price(_cut_at(model, index), k_s, index, teacher))
    uncut = dataclasses.replace(model, price=costs.whole_model, clustering=False)
    h = model.hparams
    title = f'{spec.name} on {name}, {model.method}: {model.num_active} active clients, K_u {h.k_u}, B {h.batch_size}'
    return Pricing(title, chosen, cuts, _price(uncut, k_s, WHOLE, teacher=False))


def _cut_at(model: CostModel, index: int) -> CostModel:
    return dataclasses.replace(model, model=model.model._replace(split_index=index))


def _price(model: CostModel, k_s: int, cut: int | str, teacher: bool) -> Price:
    pieces, h, uncut = model.pieces, model.hparams, cut == WHOLE
    labels = np.full(model.num_active, h.labeled_rows > 0)
    steps = np.full(model.num_active, h.k_u)
    context = CostContext(pieces, model.whole_bytes, h, model.num_active, labels=labels[:1], steps=steps[:1])
    cost = model.client_cost(context)
    bills = []
    for index in range(_ROUNDS):
        ids = data.draw_cohort(model.seed, index, model.num_clients, model.num_active)
        clients = costs.no_failures(ids, np.ones(ids.shape, int), steps, labels)
        bills.append(costs.price_round(model, index, k_s, clients))
    first = bills[0]
    return Price(
        cut=cut,
        features=0 if uncut else pieces.feature_size,
        bottom=model.whole_bytes if uncut else pieces.bottom,
        down=first.bytes_down // model.num_active,
        up=first.bytes_up // model.num_active,
        all_clients=first.bytes_down + first.bytes_up,
        client_flop=float(cost.step_work),
        server_flop=model.num_active * cost.server_work,
        memory=costs.client_memory(pieces, h.batch_size, teacher=teacher, whole=uncut),
        seconds=float(np.mean([bill.simulated_seconds for bill in bills])),
    )


def _in_mib(size: float) -> str:
    """'1234.5', '1.2', '0.123', '0.00061'."""
    return f'{size / _MIB:.1f}' if size >= _MIB else f'{size / _MIB:.3g}'


def as_text(pricing: Pricing) -> str:
    """A text table with the configuration's cut marked."""
    head = (
        'cut',
        'features',
        'part MiB',
        'down MiB',
        'up MiB',
        'all GiB',
        'client GFLOP',
        'server GFLOP',
        'client MiB',
    )
    rows: list[tuple[str, ...]] = [(*head, 'seconds')]
    for price in (*pricing.cuts, pricing.whole):
        mib = (_in_mib(size) for size in (price.bottom, price.down, price.up))
        flop = (f'{work / 1e9:.3g}' for work in (price.client_flop, price.server_flop))
        mark = '* ' if price.cut == pricing.chosen else ''
        rows.append(
            (
                f'{mark}{price.cut}',
                f'{price.features:,}',
                *mib,
                f'{price.all_clients / _GIB:.3f}',
                *flop,
                _in_mib(price.memory),
                f'{price.seconds:.1f}',
            )
        )
    notes = (
        "part: the client's part of the model · down, up: of one client in a round · all: of all active clients,",
        "up and down · GFLOP: of one iteration · client MiB: the client's memory · seconds: of a round, simulated",
        f"* the configuration's cut · {WHOLE}: nothing is cut (FedAvg with FixMatch, one model down and up)",
    )
    return '\n'.join([pricing.title, *columns(rows, '>' * len(rows[0])), *notes])


def as_csv(pricing: Pricing) -> str:
    """The exact numbers, in bytes, operations and seconds."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator='\n')
    writer.writerow(Price._fields)
    writer.writerows([*pricing.cuts, pricing.whole])
    return file.getvalue()
