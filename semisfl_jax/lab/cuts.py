"""Prices every cut of a model before training.

    semisfl cuts --config=FILE [--config.KEY=VALUE ...]

What a client sends, receives, computes and holds in a round, and how long a round would take on the network of
`config.cost`, for every index at which the model of the configuration can be cut. Prints a table and writes cuts.txt,
cuts.csv, cuts.png and cuts.svg to --workdir, without it to runs/cuts/NAME-MODEL. Needs no data for the sets that come
with a configuration.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

import semisfl_jax as sfl
from semisfl_jax import algorithms, costs, data
from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError, columns
from semisfl_jax.costs import CostContext, CostModel
from semisfl_jax.lab.plots import style
from semisfl_jax.models.layers import Compute

WHOLE = 'whole'  # name of the row of the uncut model
_ROUNDS = 10  # over which simulated seconds are averaged
_MIB = 2**20


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


def pricing(config: ConfigDict) -> Pricing:
    """Prices all cuts under a configuration.

    Raises:
      UserError: a mistake in the configuration, or a method that does not cut its model.
    """
    sfl.check(config)
    method = algorithms.get(config.algorithm)
    if not method.cuts or method.price is None:
        why = 'has no price' if method.cuts else 'does not cut its model'
        others = sorted(other.name for other in algorithms.METHODS.values() if other.cuts and other.price)
        raise UserError(f"config.algorithm='{method.name}' {why}; use one of {', '.join(others)}")
    if epochs := config.local.epochs:
        raise UserError(f'config.local.epochs={epochs}: their iterations depend on the split; set 0, and k_u')
    config = sfl.resolve(config)
    experiment = sfl.shapes.build(config)
    model, h = experiment.costs, experiment.hparams
    (spec,) = model.models
    architecture = sfl.models.ARCHITECTURES[spec.name](spec.num_classes, Compute())
    chosen = architecture.paper_split if spec.split_index is None else spec.split_index
    last, cuts = len(architecture.layers) - 1, []
    for index in range(1, last + 1):
        cut = dataclasses.replace(model, models=(spec._replace(split_index=index),))
        cuts.append(_price(cut, config.k_s, index))
    whole = dataclasses.replace(method, price=costs.whole_model)
    uncut = dataclasses.replace(model, method=whole, clustering=False)
    title = f'{spec.name} on {config.data.name}, {model.method.name}: {model.num_active} active clients, '
    title += f'K_u {h.k_u}, B {h.batch_size}'
    return Pricing(title, chosen, cuts, _price(uncut, config.k_s, WHOLE))


def _price(model: CostModel, k_s: int, cut: int | str) -> Price:
    """Prices one cut of `model`. Clients hold the teacher's part if they are sent more than their own."""
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
    first, bottom = bills[0], model.whole_bytes if uncut else pieces.bottom
    return Price(
        cut=cut,
        features=0 if uncut else pieces.feature_size,
        bottom=bottom,
        down=first.bytes_down // model.num_active,
        up=first.bytes_up // model.num_active,
        all_clients=first.bytes_down + first.bytes_up,
        client_flop=float(cost.step_work),
        server_flop=model.num_active * cost.server_work,
        memory=costs.client_memory(pieces, h.batch_size, teacher=bool(np.all(cost.download > bottom)), whole=uncut),
        seconds=float(np.mean([bill.simulated_seconds for bill in bills])),
    )


def as_text(pricing: Pricing) -> str:
    """Formats a table, in which the configuration's cut is marked."""

    def mib(size: float) -> str:  # '1234.5', '1.2', '0.123', '0.00061'
        return f'{size / _MIB:.1f}' if size >= _MIB else f'{size / _MIB:.3g}'

    head = ['cut', 'features', 'part MiB', 'down MiB', 'up MiB', 'all GiB']
    head += ['client GFLOP', 'server GFLOP', 'client MiB', 'seconds']
    rows: list[list[str]] = [head]
    for price in (*pricing.cuts, pricing.whole):
        mark = '* ' if price.cut == pricing.chosen else ''
        sizes = [mib(size) for size in (price.bottom, price.down, price.up)]
        work = [f'{price.client_flop / 1e9:.3g}', f'{price.server_flop / 1e9:.3g}']
        all_clients = price.all_clients / costs.GIB
        gib = f'{all_clients:.3f}' if all_clients >= 1 else f'{all_clients:.3g}'
        row = [f'{mark}{price.cut}', f'{price.features:,}', *sizes, gib, *work]
        rows.append([*row, mib(price.memory), f'{price.seconds:.1f}'])
    notes = (
        "part: the client's part of the model · down, up: of one client in a round · all: of all active clients,",
        "up and down · GFLOP: of one iteration · client MiB: the client's memory · seconds: of a round, no failures",
        f"* the configuration's cut · {WHOLE}: nothing is cut (FedAvg with FixMatch, one model down and up)",
    )
    return '\n'.join([pricing.title, *columns(rows, '>' * len(head)), *notes])


_PANELS = (  # title, label of the axis, unit of the values, and fields of Price with their labels
    ('Sent in a round, one client', 'MiB', _MIB, {'down': 'down', 'up': 'up'}),
    ('Computation at the client', 'GFLOP per iteration', 1e9, {'client_flop': 'client'}),
    ('Memory at the client', 'MiB', _MIB, {'memory': 'client'}),
    ('Simulated time', 'seconds per round', 1, {'seconds': 'round'}),
)


def figure(pricing: Pricing) -> Any:
    """Draws four panels over the cut, readable without colors, as a matplotlib Figure."""
    drawn, axes = style.figure(2, 2, 'page', height=2.6)
    drawn.suptitle(pricing.title)
    cuts = [price.cut for price in pricing.cuts]
    guide = {'color': style.GRAY, 'linewidth': 1}
    for ax, (title, label, unit, fields) in zip(axes.flat, _PANELS, strict=True):
        for (field, name), shape in zip(fields.items(), ('o-', 's--'), strict=False):
            color = style.BLUE if shape == 'o-' else style.VERMILION
            ax.plot(cuts, [getattr(price, field) / unit for price in pricing.cuts], shape, color=color, label=name)
        for level in {getattr(pricing.whole, field) / unit for field in fields}:
            ax.axhline(level, linestyle='-.', label='whole model', **guide)
        ax.axvline(pricing.chosen, linestyle=':', label='chosen cut', **guide)
        ax.set(title=title, xlabel='layers at the client', ylabel=label, xticks=cuts)
        ax.set_ylim(bottom=0)
        ax.legend(frameon=True, framealpha=1, edgecolor='none')  # the line of the chosen cut may pass behind it
    return drawn


def run(config: ConfigDict, name: str, workdir: str) -> None:
    """Prices the cuts of a configuration's model, prints the table, and writes it with its plot.

    Args:
      config: the configuration.
      name: of its file.
      workdir: a folder for table and plot, '' for runs/cuts/NAME-MODEL.

    Raises:
      UserError: as from `pricing`, or a folder that cannot be written to.
    """
    jax.config.update('jax_platforms', 'cpu')  # costs are counted there; a GPU is not to be taken from others
    folder = file_io.expand_home(workdir or f'runs/cuts/{name}-{config.model.name}', '--workdir')
    priced = pricing(config)
    with file_io.writing('--workdir'):
        folder.mkdir(parents=True, exist_ok=True)
    text = as_text(priced)
    print(text)
    with file_io.writing('--workdir'):
        file_io.write(folder / 'cuts.txt', f'{text}\n'.encode())
        file_io.write(folder / 'cuts.csv', file_io.as_csv(Price._fields, [*priced.cuts, priced.whole]))
        try:
            with style.context():
                drawn = figure(priced)
                for suffix in ('png', 'svg'):
                    file_io.write(folder / f'cuts.{suffix}', style.content(drawn, suffix))
        except UserError as error:  # the table is written, with or without matplotlib
            print(f'no plot: {error}')
    print(f'written to {folder}')
