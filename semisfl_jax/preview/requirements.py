"""What a run needs of a device: memory, and time that no implementation can beat without computing something else.

Times are floors, not forecasts. Arithmetic: the operations of `costs`, at the device's peak rate for products. Bytes:
weights and what autodiff keeps, at the bandwidth of its memory, if no cache holds any of them from one use to the next:

- every trained weight is read once for the passes and written once by the optimizer, and its moments likewise; the
  teacher, which follows after each supervised step, is read and written as well;
- what the student's forward pass keeps for its backward pass is written once and read once.

Not counted: evaluation, augmentation, the teacher's activations, the average of the models, what devices exchange, and
the time to start a kernel.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from semisfl_jax import core, costs
from semisfl_jax.core import trees
from semisfl_jax.core.hparams import moments_kept
from semisfl_jax.preview import program
from semisfl_jax.preview.program import Program
from semisfl_jax.preview.targets import Target
from semisfl_jax.training import inputs
from semisfl_jax.training.experiment import Experiment


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
    """Data, state and both programs, and the larger of their intermediate results."""
    state = trees.nbytes(jax.eval_shape(experiment.algorithm.init, experiment.key))
    # TPUs pad arrays; of the state, the evaluation takes only what it reads
    test_set = max(trees.nbytes(program.test_set_shapes(experiment)), evaluation.memory.arguments - state)
    programs = round_.memory, evaluation.memory
    at_work = max(memory.outputs + memory.temporary for memory in programs)
    code = sum(memory.code for memory in programs)
    federation = getattr(experiment.federation, 'tables', experiment.federation)
    names = ('server_images', 'server_labels', 'client_images', 'client_labels', 'client_targets')
    shared = trees.nbytes([getattr(federation, name) for name in names]) + test_set + code
    return MemoryNeed(round_.memory.arguments + test_set + code + at_work, shared)


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

    state = jax.eval_shape(experiment.algorithm.init, experiment.key)
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
