"""The round and the evaluation of an experiment, compiled for devices from shapes: nothing is loaded or allocated. From
them, what a run needs of a device: memory, and time that no implementation can beat without computing something else.

Times are floors, not forecasts. Arithmetic: the operations of `costs`, at the device's peak rate for products. Bytes:
weights and what autodiff keeps, at the bandwidth of its memory, if no cache holds any of them from one use to the next:

- every trained weight is read once for the passes and written once by the optimizer, and its moments likewise; the
  teacher, which follows after each supervised step, is read and written as well;
- what the student's forward pass keeps for its backward pass is written once and read once. With `model.recompute` it
  keeps about half, so there this floor is too high.

Not counted: evaluation, augmentation, the teacher's activations, the average of the models, what devices exchange, and
the time to start a kernel.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P
from ml_collections import ConfigDict

from semisfl_jax import core, costs, data
from semisfl_jax.core import rng, trees
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.hparams import moments_kept
from semisfl_jax.core.types import Federation
from semisfl_jax.preview.targets import Devices, Target
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training import inputs
from semisfl_jax.training import memory as memory_lib
from semisfl_jax.training.evaluation import Batches, batched, counting
from semisfl_jax.training.experiment import Experiment, compile_with
from semisfl_jax.training.memory import Memory

Shape = jax.ShapeDtypeStruct
_LOWERED_FOR = {'cpu': 'cpu', 'gpu': 'cuda', 'tpu': 'tpu'}
# Autotuning would run kernels on the device, and without it Triton's products may not compile. A run has both, so its
# kernels of products may differ from those seen here.
_OPTIONS: dict[str, dict[str, str | int]] = {'gpu': {'xla_gpu_autotune_level': 0, 'xla_gpu_enable_triton_gemm': False}}
_COLLECTIVE = re.compile(r' (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(')


class Program(NamedTuple):
    """A compiled program."""

    seconds: float  # of tracing and compiling, on this machine
    memory: Memory
    text: str  # optimized HLO
    operations: float  # as the compiler counts them, with one iteration of each loop; NaN: it does not say
    bytes: float  # that are read and written, likewise

    @property
    def collectives(self) -> Counter[str]:
        """Kind -> how many exchanges between devices stand in the program."""
        return Counter(_COLLECTIVE.findall(self.text))


class Refused(Exception):
    """The compiler refused a program, for the reason that the text gives."""

    def __init__(self, reason: str, for_memory: bool):
        super().__init__(' '.join(reason.split()))
        self.for_memory = for_memory  # whether it needs more than the device has


def compile_round(experiment: Experiment, target: Target, devices: Devices) -> Program:
    """The round, with the state donated as in a run; raises Refused."""
    arguments = round_shapes(experiment, devices)
    return _compiled(experiment, experiment.algorithm.round, arguments, target, donate_argnums=1)


def compile_evaluation(experiment: Experiment, target: Target, devices: Devices) -> Program:
    """The evaluation on the whole test set; raises Refused."""
    counts = counting(experiment.algorithm.predict, experiment.task_of)
    return _compiled(experiment, counts, evaluation_shapes(experiment, devices), target)


def _compiled(experiment: Experiment, function: Callable, arguments: Any, target: Target, **options: Any) -> Program:
    start = time.monotonic()
    traced = compile_with(experiment.config)(function, **options).trace(*arguments)
    lowered = traced.lower(lowering_platforms=(_LOWERED_FOR[target.platform],))
    try:
        compiled = lowered.compile(compiler_options=_OPTIONS.get(target.platform))
    except jax.errors.JaxRuntimeError as error:
        raise Refused(str(error), for_memory=memory_lib.ran_out(error)) from error
    seconds = time.monotonic() - start
    cost = compiled.cost_analysis() or {}
    work = (cost.get(name, float('nan')) for name in ('flops', 'bytes accessed'))
    return Program(seconds, memory_lib.of_program(compiled), compiled.as_text(), *work)


def shape_experiment(config: ConfigDict, mesh: Mesh | None) -> Experiment:
    """The experiment of a configuration (checked and resolved) on data of its shapes; key and federation are shapes,
    without a place. UserError: as `experiment.build`, or the configuration names a partition file."""
    if config.data.partition_file:
        raise UserError(f"config.data.partition_file='{config.data.partition_file}' needs the data; leave it empty")
    dataset = data.shape_only_dataset(config.data)
    data.check_tasks(dataset, config.data.tasks)
    partition = experiment_lib.split(dataset, config)
    shared = experiment_lib.build_shared(config, dataset, mesh)

    def tables(images: Any, targets: Mapping[str, Any]) -> Federation:  # traced, so that no image is copied
        traced = {name: target._replace(train=targets[name]) for name, target in dataset.targets.items()}
        replaced = dataclasses.replace(dataset, train_images=images, targets=traced)
        (federation,) = experiment_lib.build_federations(config, replaced, [partition])
        return data.tables(federation)

    maps = {name: target.train for name, target in dataset.targets.items()}
    federation = jax.eval_shape(tables, dataset.train_images, maps)
    if config.data.residency == 'host' or not shared.method.clients:
        targets = {name: maps[name] for name in config.data.tasks}
        federation = data.HostFederation(federation, dataset.train_images, dataset.train_labels, targets)
    key = jax.eval_shape(rng.root, 0)
    return experiment_lib.assemble(config, dataset, partition, shared, key, federation)


_OF_CLIENTS = ('client_images', 'client_labels', 'client_targets')  # divided among devices where they are streamed


def round_shapes(experiment: Experiment, devices: Devices) -> tuple[Any, ...]:
    """The arguments of the round after `pre_rounds`: key, state, federation, cohort and k_s, placed as by
    `inputs.inputs`: the cohort and the images that it reads are divided among devices, the rest is copied."""
    federation, method = experiment.federation, experiment.method
    cohort, _ = next(inputs.cohorts(experiment, 0))
    if isinstance(federation, data.HostFederation):
        federation = _streamed(experiment, federation, cohort) if method.clients else federation.tables
    copies = _copies(devices)
    divided = NamedSharding(devices.mesh, P(core.AXIS)) if devices.mesh else copies
    placed = _put(federation, copies)
    if federation.streamed:
        placed = placed.replace(**{name: _put(getattr(federation, name), divided) for name in _OF_CLIENTS})
    state = experiment.state_shapes
    key, state, k_s = _put((experiment.key, state, np.int32(0)), copies)
    return key, state, placed, _put(cohort, divided), k_s


def _streamed(experiment: Experiment, federation: data.HostFederation, cohort: Any) -> Any:
    """The federation of a round whose images come from the host; the rows that it reads have only a shape."""
    rows = jax.eval_shape(lambda x: inputs.rows(experiment._replace(federation=x), cohort), federation.tables)

    def place(shape: tuple[int, ...], fetch: Callable[[slice], np.ndarray]) -> Shape:
        return Shape(shape, fetch(slice(0)).dtype)

    return federation.streamed(np.broadcast_to(np.int32(0), rows.shape), experiment.method.reads, place=place)


def evaluation_shapes(experiment: Experiment, devices: Devices) -> tuple[Any, Any]:
    """State, and the batches of the test set."""
    state = experiment.state_shapes
    return _put((state, test_set_shapes(experiment)), _copies(devices))


def test_set_shapes(experiment: Experiment) -> Any:
    """The batches of the test set, without a place."""

    def batches(images: Any, truth: Mapping[str, Any], sizes: Any) -> Batches:
        return batched(images, truth, experiment.config.eval_batch_size, jnp.asarray, sizes)

    return jax.eval_shape(batches, experiment.dataset.test_images, experiment.test_truth, experiment.dataset.test_sizes)


def _copies(devices: Devices) -> Any:
    return NamedSharding(devices.mesh, P()) if devices.mesh else SingleDeviceSharding(devices.first)


def _put(tree: Any, sharding: Any) -> Any:
    return jax.tree.map(lambda x: Shape(x.shape, x.dtype, sharding=sharding), tree)


# --- what a run needs


class MemoryNeed(NamedTuple):
    """Bytes that a run needs on one device."""

    total: int
    shared: int  # part of `total`: images, labels and code, of which several trials have one copy

    def fits(self, target: Target) -> bool:
        """True where memory is unknown."""
        return target.usable is None or self.total <= target.usable

    def trials(self, target: Target) -> int:
        """How many trials fit at once if each needs as much as this one; 0 if memory is unknown or too small."""
        if target.usable is None or not self.fits(target):
            return 0
        return (target.usable - self.shared) // max(1, self.total - self.shared)


def memory(experiment: Experiment, round_: Program, evaluation: Program) -> MemoryNeed:
    """Data, state and both programs, and the larger of their intermediate results; with client images on the host also
    those of the next round, which are fetched during this one."""
    state = trees.nbytes(experiment.state_shapes)
    # TPUs pad arrays; of the state, the evaluation takes only what it reads
    test_set = max(trees.nbytes(test_set_shapes(experiment)), evaluation.memory.arguments - state)
    programs = round_.memory, evaluation.memory
    at_work = max(memory.outputs + memory.temporary for memory in programs)
    code = sum(memory.code for memory in programs)
    federation = data.tables(experiment.federation)
    names = ('server_images', 'server_labels', 'client_images', 'client_labels', 'client_targets')
    shared = trees.nbytes([getattr(federation, name) for name in names]) + test_set + code
    ahead = 0
    if isinstance(experiment.federation, data.HostFederation) and experiment.method.clients:
        streamed = _streamed(experiment, experiment.federation, next(inputs.cohorts(experiment, 0))[0])
        of_all = trees.nbytes([getattr(streamed, name) for name in _OF_CLIENTS])
        ahead = of_all // (experiment.mesh.size if experiment.mesh else 1)
    return MemoryNeed(round_.memory.arguments + ahead + test_set + code + at_work, shared)


class DeviceWork(NamedTuple):
    """What one device does in a phase of a round."""

    operations: float
    bytes: float

    def seconds(self, target: Target, precision: str) -> tuple[float, float]:
        """The two floors, of arithmetic and of bytes, on a device with known rates."""
        assert target.bandwidth
        return self.operations / target.peak[precision], self.bytes / target.bandwidth


class Floors(NamedTuple):
    """One round, on one device."""

    supervised: DeviceWork  # K_s steps, which every device repeats
    clients: DeviceWork  # of the clients of one device, with what the server does for them


def floors(experiment: Experiment) -> Floors | None:
    """The work of a round with clients, at the K_s of the configuration; None if the method has no price."""
    config, mesh, hparams = experiment.config, experiment.mesh, experiment.hparams
    if experiment.costs.price is None:
        return None
    participation = inputs.participation(experiment, config.pre_rounds)
    supervised, of_clients = costs.work(experiment.costs, config.pre_rounds, config.k_s, participation)
    active, tasks = config.federation.num_active, max(1, len(config.data.tasks))
    here = core.padded_size(mesh, active, tasks) // (mesh.size if mesh else 1)  # clients of one device
    steps = int(np.max(participation.made)) if participation else 0

    state = experiment.state_shapes
    passes = 2 * (1 + moments_kept(hparams))  # of a trained weight through memory, in a step of the optimizer
    whole = sum(trees.nbytes(piece['params']) for piece in state.student)
    at_clients = trees.nbytes(state.student.bottom['params']) if experiment.method.cuts else whole
    pieces = experiment.costs.of_tasks or (experiment.costs.pieces,)
    of_image = 2 * float(np.mean([piece.whole_activations for piece in pieces]))  # written and read
    of_image *= 0.5 if config.precision == 'bfloat16' else 1
    of_step = passes * whole + 2 * trees.nbytes(getattr(state, 'teacher', ())) + hparams.server_batch_size * of_image
    of_iteration = here * passes * at_clients / tasks + passes * (whole - at_clients)
    of_iteration += here * hparams.batch_size * of_image
    return Floors(
        DeviceWork(supervised, config.k_s * of_step if supervised else 0.0),
        DeviceWork(of_clients * here / active, steps * of_iteration),
    )


def hours(floors: Floors, experiment: Experiment, target: Target) -> float:
    """The larger floor of each phase, over all rounds of the run."""
    config = experiment.config
    supervised, clients = (max(work.seconds(target, config.precision)) for work in floors)
    with_clients = max(0, config.rounds - config.pre_rounds) if experiment.method.clients else 0
    return (config.rounds * supervised + with_clients * clients) / 3600
