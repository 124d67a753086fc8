"""The price of a round: bytes sent, and seconds that it would have taken on the network of `config.cost`.

A simulation alongside the training, from the configuration, the round's number, K_s, and the participation of the
clients. It does not affect the training, except through `failures.deadline_seconds`. Bandwidths are drawn for every
client and round from streams of `config.seed` that nothing else uses. They depend on neither the method nor the cohort,
so all methods with the same seed see the same network.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from semisfl_jax.core import rng
from semisfl_jax.core.errors import UserError, found, several, use_one_of
from semisfl_jax.core.hparams import HParams, default
from semisfl_jax.costs.prices import (
    ORDERS,
    PAPER_SIZES,
    ClientCost,
    CostContext,
    DenseSpec,
    ModelSpec,
    Pieces,
    measure,
    supervised_work,
)

BANDWIDTH_UNITS = {'Mbps': 1e6 / 8, 'MBps': 1e6}  # bytes per second

# Peak float32 operations per second, 2 x CUDA cores x highest clock from NVIDIA's data sheets. The paper mentions 80
# Jetson devices "under different modes" without their models; these four are an assumption.
DEVICES = {
    'jetson_nano': 2 * 128 * 0.9216e9,
    'jetson_tx2': 2 * 256 * 1.300e9,
    'jetson_xavier_nx': 2 * 384 * 1.100e9,
    'jetson_agx_xavier': 2 * 512 * 1.377e9,
}


class RoundCost(NamedTuple):
    """The cost of a round, or of all rounds so far."""

    bytes_up: int = 0  # from clients to the server
    bytes_down: int = 0
    simulated_seconds: float = 0.0


def add(one: RoundCost, other: RoundCost) -> RoundCost:
    """The sum of two."""
    seconds = one.simulated_seconds + other.simulated_seconds
    return RoundCost(one.bytes_up + other.bytes_up, one.bytes_down + other.bytes_down, seconds)


@dataclasses.dataclass(frozen=True)
class CostModel:
    """Everything that the bills of one trial depend on."""

    method: str  # its name
    price: Callable[[CostContext], ClientCost] | None  # of the method; None: unknown
    clustering: bool  # whether supervised steps have a contrastive loss
    seed: int
    num_clients: int  # N
    num_active: int  # A
    hparams: HParams
    options: default.Cost
    model: ModelSpec  # with dense tasks not measured
    task_models: tuple[DenseSpec, ...] = ()  # of each dense task
    deadline: float = 0.0  # seconds after which the server proceeds without a client; 0: never
    may_fail: bool = False  # whether clients may fail
    enabled: bool = True  # whether bills are computed: `cost.enabled`, and the method has a price

    @property
    def pieces(self) -> Pieces:
        """The pieces of the model, measured on first use in a second or two."""
        return self.of_tasks[0] if self.task_models else measure(self.model)

    @property
    def of_tasks(self) -> tuple[Pieces, ...]:
        """Those of the models of all dense tasks."""
        return tuple(map(measure, self.task_models))

    @property
    def whole_bytes(self) -> int:
        """Bytes at which a whole model is billed."""
        paper = self.options.bill_model_size == 'paper'
        return PAPER_SIZES[self.model.name] if paper else self.pieces.whole_bytes

    def client_cost(self, context: CostContext) -> ClientCost:
        """A client's part of a round, for methods with a price; UserError: that of a user's method is none."""
        assert self.price is not None
        cost = self.price(context)
        if not isinstance(cost, ClientCost):
            advice = 'return a ClientCost, such as costs.whole_model(context)'
            raise UserError(f"method '{self.method}': its price returns {found(cost)}; {advice}")
        if cost.order not in ORDERS:
            hint = use_one_of(str(cost.order), ORDERS)
            raise UserError(f"method '{self.method}': its price has order={cost.order!r}; {hint}")
        return cost


def build(
    config: ConfigDict,
    method: Any,
    num_classes: int,
    image_shape: tuple[int, int, int],
    hparams: HParams,
    may_fail: bool = False,
    outputs: Sequence[int] = (),
) -> CostModel:
    """The cost model of a resolved configuration of one trial, for K classes and images (H, W, C).

    `method`: an `algorithms.Method`; `may_fail`: whether clients may; `outputs`: of each dense task.
    """
    net, shape = config.model, (*image_shape,)  # hashable, whatever a reader gives
    return CostModel(
        method=method.name,
        price=method.price,
        clustering=method.clusters,
        seed=config.seed,
        num_clients=config.federation.num_clients,
        num_active=config.federation.num_active,
        hparams=hparams,
        options=default.Cost(**config.cost),
        model=ModelSpec(net.name, num_classes, shape, net.split_index, net.projection, net.projection_dim),
        task_models=tuple(DenseSpec(net.name, count, shape, net.output_stride) for count in outputs),
        deadline=config.failures.deadline_seconds,
        may_fail=may_fail,
        enabled=config.cost.enabled and method.price is not None,
    )


def prepare(model: CostModel) -> None:
    """Measures the pieces of the model, if rounds have a price: the first would otherwise take a second longer."""
    if model.enabled:
        _ = model.pieces, model.of_tasks


def price_round(
    model: CostModel, index: int, k_s: int, clients: Clients | None, metrics: Mapping[str, float] | None = None
) -> RoundCost:
    """The price of one round.

    Seconds: the server's K_s steps, then the clients' part. Models go to all clients simultaneously. The server notices
    a failure immediately and does not wait; for a late client it waits until the deadline. If clients wait for each
    other in every iteration (split methods), an iteration takes as long as its slowest client (computation, features
    up, gradients down) plus the server.

    `index`: the round, 0-based. `clients`: None for a round without a cohort (`pre_rounds`). `metrics`: of the round,
    which determine what some methods sent; None: the most that they can send.
    """
    server = model.options.efficiency * 1e12 * model.options.server_teraflops  # operations per second that it reaches
    context = _context(model, index, clients, metrics)
    server_seconds = k_s * supervised_work(context, model.clustering) / server
    cost = model.client_cost(context)
    if clients is None:
        everyone = model.num_clients
        return RoundCost(everyone * cost.inactive_upload, everyone * cost.inactive_download, server_seconds)
    up = clients.started * (cost.setup_upload + clients.made * cost.step_upload) + clients.survived * cost.upload
    down = clients.started * (cost.download + clients.made * cost.step_download)
    paces = _paces(model, index, clients, cost)
    if model.deadline:
        paces = paces._replace(start=np.where(clients.late, np.minimum(paces.start, model.deadline), paces.start))
    wait = np.where(clients.late, np.maximum(model.deadline - paces.start - clients.made * paces.step, 0), 0)
    tail = np.where(clients.survived, paces.end, wait)
    seconds = server_seconds + _client_seconds(cost.order, clients, paces, tail, cost.server_work / server)
    inactive = model.num_clients - int(np.sum(clients.started))  # also those that failed before the round
    bytes_up = round(float(np.sum(up))) + inactive * cost.inactive_upload
    bytes_down = round(float(np.sum(down))) + inactive * cost.inactive_download
    return RoundCost(bytes_up, bytes_down, seconds)


def work(model: CostModel, index: int, k_s: int, clients: Clients | None) -> tuple[float, float]:
    """Operations of round `index` (0-based), arguments as in `price_round`: of the K_s supervised steps, and of all
    that is computed for the clients, by themselves and by the server.
    """
    context = _context(model, index, clients, None)
    supervised = k_s * supervised_work(context, model.clustering)
    if clients is None:
        return supervised, 0.0
    cost = model.client_cost(context)
    of_clients = clients.started * cost.setup_work + clients.made * (cost.step_work + cost.server_work)
    return supervised, float(np.sum(of_clients))


def drop_late(model: CostModel, index: int, clients: Clients) -> Clients:
    """Drops the clients that are too slow for the deadline of round `index` (0-based), if there is one.

    The deadline applies to a client's own time, from the start of its download to the end of its upload, without
    waiting for others, and assuming the most that the method may send.
    """
    if not model.deadline:
        return clients
    start, step, end = _paces(model, index, clients, model.client_cost(_context(model, index, clients, None)))
    late = start + clients.steps * step + end > model.deadline
    with np.errstate(divide='ignore'):  # steps that take no time
        made = np.clip(np.floor((model.deadline - start) / step), 0, clients.steps)
    return drop(clients, np.where(late, made, np.inf), late=True)


def _context(model: CostModel, index: int, clients: Clients | None, metrics: Mapping[str, float] | None) -> CostContext:
    everyone = model.num_active == model.num_clients and not model.may_fail
    context = CostContext(model.pieces, model.whole_bytes, model.hparams, model.num_active, index)
    context = context._replace(metrics=metrics, of_tasks=model.of_tasks, everyone=everyone)
    if clients is None:
        return context
    return context._replace(
        **{name: getattr(clients, name) for name in ('labels', 'steps', 'images', 'unlabeled')},
        tasks=clients.ids % max(1, len(model.task_models)),
        survivors=int(np.sum(clients.survived)),
    )


class Paces(NamedTuple):
    """Seconds of each client [A], without waiting for others."""

    start: np.ndarray  # before its first iteration
    step: np.ndarray  # of an iteration
    end: np.ndarray  # after its last iteration


def _paces(model: CostModel, index: int, clients: Clients, cost: ClientCost) -> Paces:
    up, down = draw_links(model.options, model.seed, index, clients.ids, model.num_clients)
    speed = client_speeds(model.options, model.seed, model.num_clients)[clients.ids]
    return Paces(
        start=cost.download / down + cost.setup_upload / up + cost.setup_work / speed,
        step=cost.step_download / down + cost.step_upload / up + cost.step_work / speed,
        end=cost.upload / up,
    )


def _client_seconds(order: str, clients: Clients, paces: Paces, tail: np.ndarray, server_step: float) -> float:
    """Seconds of the clients' part, in the `order` of a ClientCost, from their `paces`.

    `tail` [A]: seconds that the server waits for each after its last iteration; `server_step`: seconds of the server
    per iteration for one client's rows.
    """
    started = clients.started
    if not started.any():
        return 0.0
    start, step, made, tail = paces.start[started], paces.step[started], clients.made[started], tail[started]
    if order == 'independent':
        return float(np.max(start + made * step + tail))
    whole = made == clients.steps[started]
    last, missed = float(np.max(np.where(whole, tail, 0))), np.where(whole, 0, tail)  # of late clients: to the deadline
    if order == 'sequential':
        return float(np.max(start) + np.sum(made * (step + server_step) + missed)) + last
    between, done = 0.0, 0
    for count in np.unique(made):  # the set of clients is constant until the next one leaves
        running = made >= count
        between += float(count - done) * float(np.max(step[running]) + np.sum(running) * server_step)
        between += float(np.max(np.where(made == count, missed, 0)))
        done = count
    return float(np.max(start)) + between + last


# --- the network


def draw_links(options: default.Cost, seed: int, index: int, ids: np.ndarray, num_clients: int) -> np.ndarray:
    """Bytes per second [2, A], up and down, of the clients `ids` [A] in round `index` (0-based), uniform in the ranges
    of the options."""
    generator, unit = rng.host(seed, 'bandwidth', index), BANDWIDTH_UNITS[options.bandwidth_unit]
    links = [unit * generator.uniform(*ends, num_clients) for ends in (options.client_out, options.client_in)]
    return np.stack(links)[:, ids]


def client_speeds(options: default.Cost, seed: int, num_clients: int) -> np.ndarray:
    """Operations per second [N] that clients reach. Device models are equally frequent, up to one client."""
    peaks = np.array([DEVICES[name] for name in options.devices])
    places = rng.host(seed, 'devices').permutation(num_clients)
    return options.efficiency * peaks[places % len(peaks)]


def check_network(flat: dict[str, Any]) -> None:
    """Raises UserError for bandwidths or devices of `config.cost`, in a flat configuration, that cannot be."""
    for key in ('client_out', 'client_in'):
        ends = flat[f'cost.{key}']
        numbers = all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends)
        if len(ends) != 2 or not numbers or not 0 < ends[0] <= ends[1] < math.inf:
            raise UserError(f'config.cost.{key}={tuple(ends)} must be two bandwidths above 0, as in (0.8, 8.0)')
    devices = flat['cost.devices']
    if not devices:
        raise UserError(f'config.cost.devices is empty; name one or more of {", ".join(DEVICES)}')
    if unknown := [name for name in devices if name not in DEVICES]:
        hint = several('cost.devices', str(unknown[0])) or use_one_of(str(unknown[0]), DEVICES)
        raise UserError(f'config.cost.devices holds {unknown[0]!r}, which is unknown; {hint}')


# --- participation of the active clients: which started, how far each got, and which updates arrived


class Clients(NamedTuple):
    """Host arrays with one entry for each of A active clients."""

    ids: np.ndarray  # [A] int
    images: np.ndarray  # [A] int, images that each trains on; with 0 it does not take part
    unlabeled: np.ndarray  # [A] int, those of them without a label
    steps: np.ndarray  # [A] int, iterations of a whole round
    labels: np.ndarray  # [A] bool, whether its batches hold labeled images
    started: np.ndarray  # [A] bool, whether it got the model: it has data, and did not fail before the round
    made: np.ndarray  # [A] int, iterations it finished
    failed: np.ndarray  # [A] bool, before the round or inside it
    late: np.ndarray  # [A] bool, failed by missing the deadline

    @property
    def survived(self) -> np.ndarray:
        """[A] bool, whether its update counts."""
        return self.started & ~self.failed


def no_failures(
    ids: np.ndarray, images: np.ndarray, steps: np.ndarray, labels: np.ndarray, unlabeled: np.ndarray | None = None
) -> Clients:
    """A round in which no client fails. Clients without images do not start. `unlabeled` None: all images are."""
    no_client, started = np.zeros(ids.shape, bool), images > 0
    made = np.where(started, steps, 0)
    unlabeled = images if unlabeled is None else unlabeled
    return Clients(ids, images, unlabeled, steps, labels, started, made, failed=no_client, late=no_client)


def drop(clients: Clients, made: np.ndarray, never: np.ndarray | bool = False, late: bool = False) -> Clients:
    """Lets some of the clients that have data fail.

    `made` [A]: iterations that a client finishes before it fails; infinite if it does not. `never` [A]: which of the
    failing clients do not even start. `late`: whether they fail by being late; those that have failed otherwise are
    not.
    """
    fails = np.isfinite(made) & clients.started
    started = clients.started & ~(fails & never)
    made = np.where(fails, np.minimum(made, clients.made), clients.made).astype(int)
    return clients._replace(
        started=started,
        made=np.where(started, made, 0),
        failed=clients.failed | fails,
        late=clients.late | (late & fails & ~clients.failed),
    )
