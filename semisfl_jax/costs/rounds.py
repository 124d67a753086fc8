"""The price of a round: bytes sent, and the seconds it would have taken on the network of `config.cost`.

The simulation runs alongside the training. Its inputs are the configuration, the round's number, K_s, and the
participation of the clients, and it affects the training only through `failures.deadline_seconds`. Bandwidths are drawn
for every client and round from streams of `config.seed` that nothing else uses. They depend on neither the method nor
the cohort, so all methods with one seed see the same network.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from ml_collections import ConfigDict

from semisfl_jax.base.errors import UserError, describe, use_one_of
from semisfl_jax.base.keys import key as option
from semisfl_jax.core import rng
from semisfl_jax.core.hparams import HParams
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
from semisfl_jax.tasks import Task

GIB = 2**30  # bytes: the unit of traffic in figures and tables, called GB in the paper
BANDWIDTH_UNITS = {'Mbps': 1e6 / 8, 'MBps': 1e6}  # bytes per second

# Peak float32 operations per second, 2 x CUDA cores x highest clock from NVIDIA's data sheets. The paper mentions 80
# Jetson devices "under different modes" without their models; these four are an assumption.
DEVICES = {
    'jetson_nano': 2 * 128 * 0.9216e9,
    'jetson_tx2': 2 * 256 * 1.300e9,
    'jetson_xavier_nx': 2 * 384 * 1.100e9,
    'jetson_agx_xavier': 2 * 512 * 1.377e9,
}


# fmt: off
@dataclasses.dataclass(frozen=True)
class CostOptions:
    """The keys of `config.cost`: bytes and simulated seconds, which do not affect the training."""

    enabled: bool = option(True, help='bytes_up, bytes_down and simulated_seconds in the metrics')
    bill_model_size: str = option('actual', choices=('actual', 'paper'), help='of whole models; paper: alexnet 127 '
        'MiB, vgg13 508, vgg16 528')
    bandwidth_unit: str = option('Mbps', choices=('Mbps', 'MBps'), help='Mbps, as in the paper | MBps, which matches '
        'its times')
    client_out: tuple[float, float] = option((0.8, 8.0), help='lowest and highest upload bandwidth, drawn for each '
        'client and round')
    client_in: tuple[float, float] = option((10.0, 20.0), help='the same for download')
    devices: tuple[str, ...] = option(('jetson_tx2', 'jetson_xavier_nx', 'jetson_agx_xavier'),
        help="or 'jetson_nano'; in equal numbers")
    efficiency: float = option(0.3, above=0, at_most=1, help="share of a device's float32 peak that training reaches, "
        'also at the server')
    server_teraflops: float = option(38.7, above=0, help='float32 peak of the server: one NVIDIA RTX A6000')
# fmt: on


class RoundCost(NamedTuple):
    """The cost of a round, or of all rounds so far."""

    bytes_up: int = 0  # from clients to the server
    bytes_down: int = 0
    simulated_seconds: float = 0.0


class Clients(NamedTuple):
    """Participation of the A active clients: who started, how far each got, whose update arrived."""

    ids: np.ndarray  # [A] int
    images: np.ndarray  # [A] int, images that each trains on; with 0 it does not take part
    unlabeled: np.ndarray  # [A] int, images without a label among them
    steps: np.ndarray  # [A] int, iterations of a whole round
    labels: np.ndarray  # [A] bool, whether its batches hold labeled images
    started: np.ndarray  # [A] bool, whether it got the model: it has data, and did not fail before the round
    completed: np.ndarray  # [A] int, completed iterations
    failed: np.ndarray  # [A] bool, before the round or inside it
    late: np.ndarray  # [A] bool, failed by missing the deadline

    @property
    def survived(self) -> np.ndarray:
        """[A] bool, whether its update counts."""
        return self.started & ~self.failed


@dataclasses.dataclass(frozen=True)
class CostModel:
    """All inputs of the bills of one trial but what happens in a round."""

    method: Any  # an `algorithms.Method`
    clustering: bool  # whether supervised steps have a contrastive loss
    seed: int
    num_clients: int  # N
    num_active: int  # A
    hparams: HParams
    options: CostOptions
    models: tuple[Any, ...]  # the `ModelSpec`, or the `DenseSpec` of every dense task
    deadline: float = 0.0  # seconds after which the server proceeds without a client; 0: never
    may_fail: bool = False  # whether clients may fail
    enabled: bool = True  # whether bills are computed: `cost.enabled`, and the method has a price

    @property
    def pieces(self) -> Pieces:
        """The pieces of the first task's model, measured on first use in a second or two."""
        return measure(self.models[0])

    @property
    def task_pieces(self) -> tuple[Pieces, ...]:
        """The pieces of each task's model."""
        return tuple(map(measure, self.models))

    @property
    def whole_bytes(self) -> int:
        """The bytes at which a whole model is billed."""
        paper = self.options.bill_model_size == 'paper'
        return PAPER_SIZES[self.models[0].name] if paper else self.pieces.whole_bytes

    def client_cost(self, context: CostContext) -> ClientCost:
        """Computes a client's part of a round, for methods with a price.

        Raises:
          UserError: the price of a user's method is not a valid ClientCost.
        """
        cost = self.method.price(context)
        if not isinstance(cost, ClientCost):
            advice = 'return a ClientCost, such as costs.whole_model(context)'
            raise UserError(f"method '{self.method.name}': its price returns {describe(cost)}; {advice}")
        if cost.order not in ORDERS:
            hint = use_one_of(str(cost.order), ORDERS)
            raise UserError(f"method '{self.method.name}': its price has order={cost.order!r}; {hint}")
        return cost


def build(
    config: ConfigDict,
    method: Any,
    num_classes: int,
    image_shape: tuple[int, int, int],
    hparams: HParams,
    may_fail: bool = False,
    tasks: Sequence[Task] = (),
) -> CostModel:
    """Builds the cost model of one trial.

    Args:
      config: a resolved configuration.
      method: an `algorithms.Method`.
      num_classes: K.
      image_shape: (H, W, C).
      hparams: the hyper-parameters.
      may_fail: whether clients may fail.
      tasks: the dense tasks.
    """
    net, shape = config.model, (*image_shape,)  # a hashable tuple, even if a reader gives a list
    dense = tuple(DenseSpec.of(task, net.name, shape, net.output_stride) for task in tasks)
    classifier = ModelSpec(net.name, num_classes, shape, net.split_index, net.projection, net.projection_dim)
    return CostModel(
        method=method,
        clustering=method.clusters,
        seed=config.seed,
        num_clients=config.federation.num_clients,
        num_active=config.federation.num_active,
        hparams=hparams,
        options=CostOptions(**config.cost),
        models=dense or (classifier,),
        deadline=config.failures.deadline_seconds,
        may_fail=may_fail,
        enabled=config.cost.enabled and method.price is not None,
    )


def price_round(
    model: CostModel, index: int, k_s: int, clients: Clients | None, metrics: Mapping[str, float] | None = None
) -> RoundCost:
    """Computes the price of one round.

    Seconds are those of the server's K_s steps, then of the clients' part. Models go to all clients simultaneously. The
    server notices a failure immediately and does not wait; for a late client it waits until the deadline. If clients
    wait for each other in every iteration (split methods), an iteration takes as long as its slowest client
    (computation, features up, gradients down) plus the server.

    Args:
      model: the cost model of the trial.
      index: the round, 0-based.
      k_s: the server's steps, K_s.
      clients: the participation; None: a round without a cohort (`pre_rounds`).
      metrics: of the round, which determine what some methods sent; None: the most that they can send.
    """
    server = model.options.efficiency * 1e12 * model.options.server_teraflops  # operations per second
    context = _context(model, index, clients, metrics)
    server_seconds = k_s * supervised_work(context, model.clustering) / server
    cost = model.client_cost(context)
    if clients is None:
        everyone = model.num_clients
        return RoundCost(everyone * cost.inactive_upload, everyone * cost.inactive_download, server_seconds)
    up = clients.started * (cost.setup_upload + clients.completed * cost.step_upload) + clients.survived * cost.upload
    down = clients.started * (cost.download + clients.completed * cost.step_download)
    paces = _paces(model, index, clients, cost)
    if model.deadline:
        paces = paces._replace(start=np.where(clients.late, np.minimum(paces.start, model.deadline), paces.start))
    wait = np.where(clients.late, np.maximum(model.deadline - paces.start - clients.completed * paces.step, 0), 0)
    tail = np.where(clients.survived, paces.end, wait)
    seconds = server_seconds + _client_seconds(cost.order, clients, paces, tail, cost.server_work / server)
    inactive = model.num_clients - int(np.sum(clients.started))  # also those that failed before the round
    bytes_up = round(float(np.sum(up))) + inactive * cost.inactive_upload
    bytes_down = round(float(np.sum(down))) + inactive * cost.inactive_download
    return RoundCost(bytes_up, bytes_down, seconds)


def work(model: CostModel, index: int, k_s: int, clients: Clients | None) -> tuple[float, float]:
    """Computes the operations of a round.

    Args:
      model: the cost model of the trial.
      index: the round, 0-based.
      k_s: the server's steps, K_s.
      clients: the participation; None: a round without a cohort (`pre_rounds`).

    Returns:
      Operations of the K_s supervised steps, and of all that clients and server compute for the clients.
    """
    context = _context(model, index, clients, None)
    supervised = k_s * supervised_work(context, model.clustering)
    if clients is None:
        return supervised, 0.0
    cost = model.client_cost(context)
    operations = clients.started * cost.setup_work + clients.completed * (cost.step_work + cost.server_work)
    return supervised, float(np.sum(operations))


def drop_late(model: CostModel, index: int, clients: Clients) -> Clients:
    """Drops the clients that are too slow for the deadline of a round, if it has one.

    The deadline applies to a client's own time, from the start of its download to the end of its upload, without
    waiting for other clients, and assuming the most that the method may send.

    Args:
      model: the cost model of the trial.
      index: the round, 0-based.
      clients: the participation before the deadline.
    """
    if not model.deadline:
        return clients
    start, step, end = _paces(model, index, clients, model.client_cost(_context(model, index, clients, None)))
    late = start + clients.steps * step + end > model.deadline
    with np.errstate(divide='ignore'):  # steps that take no time
        completed = np.clip(np.floor((model.deadline - start) / step), 0, clients.steps)
    return drop(clients, np.where(late, completed, np.inf), late=True)


def _context(model: CostModel, index: int, clients: Clients | None, metrics: Mapping[str, float] | None) -> CostContext:
    everyone = model.num_active == model.num_clients and not model.may_fail
    context = CostContext(model.pieces, model.whole_bytes, model.hparams, model.num_active, index)
    context = context._replace(metrics=metrics, task_pieces=model.task_pieces, everyone=everyone)
    if clients is None:
        return context
    return context._replace(
        **{name: getattr(clients, name) for name in ('labels', 'steps', 'images', 'unlabeled')},
        tasks=clients.ids % len(model.models),
        survivors=int(np.sum(clients.survived)),
    )


class Paces(NamedTuple):
    """Seconds of each client [A], without waiting for other clients."""

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
    """Returns the seconds of the clients' part, in the `order` of a ClientCost, from their `paces`.

    `tail` [A]: seconds that the server waits for each client after its last iteration; `server_step`: the server's
    seconds per iteration for one client's rows.
    """
    started = clients.started
    if not started.any():
        return 0.0
    start, step, completed, tail = paces.start[started], paces.step[started], clients.completed[started], tail[started]
    if order == 'independent':
        return float(np.max(start + completed * step + tail))
    whole = completed == clients.steps[started]
    # A late client that missed iterations holds up the round until the deadline, before the last iteration
    last, missed = float(np.max(np.where(whole, tail, 0))), np.where(whole, 0, tail)
    if order == 'sequential':
        return float(np.max(start) + np.sum(completed * (step + server_step) + missed)) + last
    between, done = 0.0, 0
    for count in np.unique(completed):  # the set of clients is constant until the next one leaves
        running = completed >= count
        between += float(count - done) * float(np.max(step[running]) + np.sum(running) * server_step)
        between += float(np.max(np.where(completed == count, missed, 0)))
        done = count
    return float(np.max(start)) + between + last


# --- the network


def draw_links(options: CostOptions, seed: int, index: int, ids: np.ndarray, num_clients: int) -> np.ndarray:
    """Draws the bandwidths of clients in a round, uniform in the ranges of the options.

    Args:
      options: the keys of `config.cost`.
      seed: `config.seed`.
      index: the round, 0-based.
      ids: the clients [A].
      num_clients: N; all clients are drawn, so that links do not depend on the cohort.

    Returns:
      Bytes per second [2, A], up and down.
    """
    generator, unit = rng.host(seed, 'bandwidth', index), BANDWIDTH_UNITS[options.bandwidth_unit]
    links = [unit * generator.uniform(*ends, num_clients) for ends in (options.client_out, options.client_in)]
    return np.stack(links)[:, ids]


def client_speeds(options: CostOptions, seed: int, num_clients: int) -> np.ndarray:
    """Draws the operations per second that clients reach.

    Device models are equally frequent, up to one client.

    Args:
      options: the keys of `config.cost`.
      seed: `config.seed`.
      num_clients: N.

    Returns:
      Operations per second [N].
    """
    peaks = np.array([DEVICES[name] for name in options.devices])
    places = rng.host(seed, 'devices').permutation(num_clients)
    return options.efficiency * peaks[places % len(peaks)]


def check_network(flat: dict[str, Any]) -> None:
    """Raises UserError for impossible bandwidths or unknown devices of `config.cost`, in a flat configuration."""
    for key in ('client_out', 'client_in'):
        ends = flat[f'cost.{key}']
        numbers = all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends)
        if len(ends) != 2 or not numbers or not 0 < ends[0] <= ends[1] < math.inf:
            raise UserError(f'config.cost.{key}={tuple(ends)} must be two bandwidths above 0, as in (0.8, 8.0)')
    devices = flat['cost.devices']
    if not devices:
        raise UserError(f'config.cost.devices is empty; name one or more of {", ".join(DEVICES)}')
    if unknown := [name for name in devices if name not in DEVICES]:
        use = use_one_of(str(unknown[0]), DEVICES)
        raise UserError(f'config.cost.devices holds {unknown[0]!r}, which is unknown; {use}')


def no_failures(
    ids: np.ndarray, images: np.ndarray, steps: np.ndarray, labels: np.ndarray, unlabeled: np.ndarray | None = None
) -> Clients:
    """Builds a round in which no client fails. Clients without images do not start.

    Args:
      ids: the clients [A].
      images: images that each trains on [A].
      steps: iterations of a whole round [A].
      labels: whether batches hold labeled images [A].
      unlabeled: images without a label [A]; None: all.
    """
    no_client, started = np.zeros(ids.shape, bool), images > 0
    completed = np.where(started, steps, 0)
    unlabeled = images if unlabeled is None else unlabeled
    return Clients(ids, images, unlabeled, steps, labels, started, completed, failed=no_client, late=no_client)


def drop(clients: Clients, completed: np.ndarray, never: np.ndarray | bool = False, late: bool = False) -> Clients:
    """Lets some of the clients that have data fail.

    Args:
      clients: the participation so far.
      completed: [A], iterations that a client completes before it fails; infinite if it does not fail.
      never: [A], which of the failing clients do not even start.
      late: whether they fail by being late. Clients that had already failed do not become late.
    """
    fails = np.isfinite(completed) & clients.started
    started = clients.started & ~(fails & never)
    completed = np.where(fails, np.minimum(completed, clients.completed), clients.completed).astype(int)
    return clients._replace(
        started=started,
        completed=np.where(started, completed, 0),
        failed=clients.failed | fails,
        late=clients.late | (late & fails & ~clients.failed),
    )
