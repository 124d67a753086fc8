"""The round and the evaluation of an experiment, compiled for devices from shapes: nothing is loaded or allocated.

From them, what a run needs of a device: memory, and time that no implementation can beat without computing something
else.

Times are floors, not forecasts. Arithmetic: the operations of `costs`, at the device's peak rate for products. Bytes:
weights and what autodiff keeps, at the bandwidth of its memory, if no cache holds any of them from one use to the next:

- every trained weight is read once for the passes and written once by the optimizer, and its moments likewise; the
  teacher, which follows after each supervised step, is read and written as well;
- what the student's forward pass keeps for its backward pass is written once and read once. With `model.recompute` it
  keeps about half, so there this floor is too high.

Not counted: evaluation, augmentation, the teacher's activations, the average of the models, what devices exchange, and
the time to start a kernel.
"""

import re
import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np

import semisfl_jax as sfl
from semisfl_jax.lab.preview.targets import Target

_LOWERED_FOR = {'cpu': 'cpu', 'gpu': 'cuda', 'tpu': 'tpu'}
# Autotuning would run kernels on the device, and without it Triton's products may not compile. A run has both, so its
# kernels of products may differ from those seen here.
_OPTIONS: dict[str, dict[str, str | int]] = {'gpu': {'xla_gpu_autotune_level': 0, 'xla_gpu_enable_triton_gemm': False}}
_COLLECTIVE = re.compile(r' (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\(')


class Program(NamedTuple):
    """A compiled program."""

    seconds: float  # of tracing and compiling, on this machine
    memory: sfl.memory.Memory
    text: str  # optimized HLO
    operations: float  # as the compiler counts them, with one iteration of each loop; NaN: it does not say
    bytes: float  # that are read and written, likewise

    @property
    def collectives(self) -> Counter[str]:
        """Counts the exchanges between devices that stand in the program, by kind."""
        return Counter(_COLLECTIVE.findall(self.text))


class Refused(Exception):
    """The compiler refused a program, for the reason that the text gives."""

    def __init__(self, reason: str, for_memory: bool):
        super().__init__(' '.join(reason.split()))
        self.for_memory = for_memory  # whether it needs more than the device has


def compile_for(
    target: Target,
    device: jax.Device,
    experiment: sfl.Experiment,
    trace: Callable[[sfl.Experiment, jax.Device], jax.stages.Traced],
) -> Program:
    """Compiles a program of an experiment, the state donated as in a run.

    Args:
      target: the kind of device.
      device: the place of the arguments, unless the experiment has a mesh.
      experiment: from `sfl.shapes.build`.
      trace: `sfl.shapes.trace_round`, or `trace_evaluation`, on the whole test set.

    Raises:
      Refused: the compiler refuses it.
    """
    start = time.monotonic()
    lowered = trace(experiment, device).lower(lowering_platforms=(_LOWERED_FOR[target.platform],))
    try:
        compiled = lowered.compile(compiler_options=_OPTIONS.get(target.platform))
    except jax.errors.JaxRuntimeError as error:
        raise Refused(str(error), for_memory=sfl.memory.ran_out(error)) from error
    seconds = time.monotonic() - start
    cost = compiled.cost_analysis() or {}
    work = (cost.get(name, float('nan')) for name in ('flops', 'bytes accessed'))
    return Program(seconds, sfl.memory.program_memory(compiled), compiled.as_text(), *work)


# --- what a run needs


class MemoryNeed(NamedTuple):
    """Bytes that a run needs on one device."""

    total: int
    shared: int  # part of `total`: images, labels and code, of which several trials have one copy

    def fits(self, target: Target) -> bool:
        """Returns whether a device has the memory; True where that is unknown."""
        return target.usable is None or self.total <= target.usable

    def trials(self, target: Target) -> int:
        """Returns how many trials fit at once if each needs as much as this one; 0: memory is unknown or too small."""
        if target.usable is None or not self.fits(target):
            return 0
        return (target.usable - self.shared) // max(1, self.total - self.shared)


def memory(experiment: sfl.Experiment, round_: Program, evaluation: Program) -> MemoryNeed:
    """Computes what a run needs: data, state, both programs, and the larger of their intermediate results.

    With client images on the host it also counts those of the next round, which are fetched during this one.

    Args:
      experiment: from `sfl.shapes.build`.
      round_: its round.
      evaluation: its evaluation.
    """
    nbytes = sfl.trees.nbytes
    # TPUs pad arrays; of the state, the evaluation takes only what it reads
    arguments = evaluation.memory.arguments - nbytes(experiment.state_shapes)
    test_set = max(nbytes(sfl.shapes.batches(experiment)), arguments)
    programs = round_.memory, evaluation.memory
    at_work = max(memory.outputs + memory.temporary for memory in programs)
    code = sum(memory.code for memory in programs)
    federation = sfl.data.tables(experiment.federation)
    names = ('server_images', 'server_labels', 'client_images', 'client_labels', 'client_targets')
    shared = nbytes([getattr(federation, name) for name in names]) + test_set + code
    ahead = sfl.shapes.streamed_bytes(experiment)
    return MemoryNeed(round_.memory.arguments + ahead + test_set + code + at_work, shared)


class DeviceWork(NamedTuple):
    """What one device does in a phase of a round."""

    operations: float
    bytes: float

    def seconds(self, target: Target, precision: str) -> tuple[float, float]:
        """Returns the two floors, of arithmetic and of bytes.

        Args:
          target: a device with known rates.
          precision: that of the configuration.
        """
        assert target.bandwidth
        return self.operations / target.peak[precision], self.bytes / target.bandwidth


class Floors(NamedTuple):
    """One round, on one device."""

    supervised: DeviceWork  # K_s steps, which every device repeats
    clients: DeviceWork  # of the clients of one device, with what the server does for them


def floors(experiment: sfl.Experiment) -> Floors | None:
    """Computes the work of a round with clients, at the K_s of the configuration; None if the method has no price."""
    config, hparams, nbytes = experiment.config, experiment.hparams, sfl.trees.nbytes
    if experiment.method.price is None:
        return None
    participation = sfl.participation(experiment, config.pre_rounds)
    supervised, by_clients = sfl.costs.work(experiment.costs, config.pre_rounds, config.k_s, participation)
    active, tasks = config.federation.num_active, len(experiment.costs.models)
    here = sfl.clients.padded_size(experiment.mesh, active, tasks) // experiment.devices  # clients of one device
    steps = int(np.max(participation.completed)) if participation else 0

    state = experiment.state_shapes
    passes = 2 * (1 + sfl.hparams.moments_kept(hparams))  # of a trained weight through memory, in a step
    whole = sum(nbytes(piece['params']) for piece in state.student)
    at_clients = nbytes(state.student.bottom['params']) if experiment.method.cuts else whole
    pieces = experiment.costs.task_pieces
    image_bytes = 2 * float(np.mean([piece.whole_activations for piece in pieces]))  # written and read
    image_bytes *= 0.5 if config.precision == 'bfloat16' else 1
    step_bytes = passes * whole + 2 * nbytes(getattr(state, 'teacher', ())) + hparams.server_batch_size * image_bytes
    iteration_bytes = here * passes * at_clients / tasks + passes * (whole - at_clients)
    iteration_bytes += here * hparams.batch_size * image_bytes
    return Floors(
        DeviceWork(supervised, config.k_s * step_bytes if supervised else 0.0),
        DeviceWork(by_clients * here / active, steps * iteration_bytes),
    )


def hours(floors: Floors, experiment: sfl.Experiment, target: Target) -> float:
    """Sums the larger floor of each phase over all rounds of the run.

    Args:
      floors: of a round.
      experiment: the experiment.
      target: a device with known rates.
    """
    config = experiment.config
    supervised, clients = (max(work.seconds(target, config.precision)) for work in floors)
    with_clients = max(0, config.rounds - config.pre_rounds) if experiment.method.clients else 0
    return (config.rounds * supervised + with_clients * clients) / 3600
