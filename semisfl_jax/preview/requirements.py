"""Times that no implementation can beat on a device without computing something else: floors, not forecasts.

Arithmetic: the operations of `costs`, at the device's peak rate for products. Bytes: weights and what autodiff keeps,
at the bandwidth of its memory, if no cache holds any of them from one use to the next:

- every trained weight is read once for the passes and written once by the optimizer, and its moments likewise; the
  teacher, which follows after each supervised step, is read and written as well;
- what the student's forward pass keeps for its backward pass is written once and read once.

Not counted: evaluation, augmentation, the teacher's activations, the average of the models, what devices exchange, and
the time to start a kernel.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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


class DeviceWork(NamedTuple):
    """What one device does in a phase of a round."""

    operations: float
    bytes: float


class Floors(NamedTuple):
    """One round, on one device."""

    supervised: DeviceWork  # K_s steps, which every device repeats
    clients: DeviceWork  # of the clients of one device, with what the server does for them


def floors(experiment: Experiment) -> Floors | None:
    """The work of a round with clients, at the K_s of the configuration; None if the method has no price."""
    config, mesh = experiment.config, experiment.mesh
    if experiment.costs.price is None:
        return None
    clients = inputs.participation(experiment, config.pre_rounds)
    supervised, of_clients = costs.work(experiment.costs, config.pre_rounds, config.k_s, clients)
    active = config.federation.num_active
    here = core.padded_size(mesh, active, max(1, len(config.data.tasks))) // (mesh.size if mesh else 1)
    steps = int(np.max(clients.made)) if clients else 0
    return Floors(
        DeviceWork(supervised, config.k_s * _supervised_bytes(experiment) if supervised else 0.0),
        DeviceWork(of_clients * here / active, steps * _client_bytes(experiment, here)),
    )


def seconds(work: DeviceWork, target: Target, precision: str) -> tuple[float, float]:
    """The two floors of some work on a device whose rates are known: of arithmetic, and of bytes."""
    assert target.bandwidth
    return work.operations / target.peak[precision], work.bytes / target.bandwidth


def hours(floors: Floors, experiment: Experiment, target: Target) -> float:
    """The larger floor of each phase, over all rounds of the run."""
    config = experiment.config
    supervised, clients = (max(seconds(work, target, config.precision)) for work in floors)
    with_clients = max(0, config.rounds - config.pre_rounds) if experiment.method.clients else 0
    return (config.rounds * supervised + with_clients * clients) / 3600


def _supervised_bytes(experiment: Experiment) -> float:
    """Of one step."""
    hparams, state = experiment.hparams, _state(experiment)
    teacher = trees.nbytes(getattr(state, 'teacher', ()))
    weights = _trained(experiment, _parameters(state.student))
    return weights + 2 * teacher + _activations(experiment, hparams.server_batch_size)


def _client_bytes(experiment: Experiment, clients: int) -> float:
    """Of one iteration of that many clients."""
    state, tasks = _state(experiment), max(1, len(experiment.config.data.tasks))
    at_clients, at_server = _parameters(state.student), 0
    if experiment.method.cuts:
        at_clients = _parameters([state.student.bottom])
        at_server = _parameters(state.student) - at_clients
    weights = clients * _trained(experiment, at_clients / tasks) + _trained(experiment, at_server)
    return weights + _activations(experiment, clients * experiment.hparams.batch_size)


def _trained(experiment: Experiment, size: float) -> float:
    """Bytes that pass for weights of `size` bytes in a step of the optimizer."""
    return 2 * (1 + moments_kept(experiment.hparams)) * size


def _activations(experiment: Experiment, rows: int) -> float:
    pieces = experiment.costs.of_tasks or (experiment.costs.pieces,)
    of_image = float(np.mean([piece.whole_activations for piece in pieces]))
    return 2 * rows * of_image * (0.5 if experiment.config.precision == 'bfloat16' else 1)


def _parameters(pieces: Any) -> int:
    """Bytes of the parameters of a model's pieces."""
    return sum(trees.nbytes(piece['params']) for piece in pieces)


def _state(experiment: Experiment) -> Any:
    return jax.eval_shape(experiment.algorithm.init, experiment.key)


# Whether a run fits into the memory of a device.


class MemoryNeed(NamedTuple):
    """Bytes that a run needs on one device."""

    total: int
    shared: int  # part of `total`: images, labels and code, of which several trials have one copy

    def fits(self, target: Target) -> bool:
        """Whether that is there; so it seems where memory is unknown."""
        return target.usable is None or self.total <= target.usable

    def trials(self, target: Target) -> int:
        """How many trials fit at once if each needs as much as this one; 0 if memory is unknown or too small."""
        if target.usable is None or not self.fits(target):
            return 0
        return (target.usable - self.shared) // max(1, self.total - self.shared)


def memory(experiment: Experiment, round_: Program, evaluation: Program) -> MemoryNeed:
    """What a run needs: data, state and both programs, and the larger of their intermediate results."""
    state = trees.nbytes(jax.eval_shape(experiment.algorithm.init, experiment.key))
    # TPUs pad arrays; of the state, the evaluation takes only what it reads
    test_set = max(trees.nbytes(program.test_set_shapes(experiment)), evaluation.memory.arguments - state)
    programs = round_.memory, evaluation.memory
    at_work = max(memory.outputs + memory.temporary for memory in programs)
    code = sum(memory.code for memory in programs)
    return MemoryNeed(round_.memory.arguments + test_set + code + at_work, shared=_images(experiment) + test_set + code)


def _images(experiment: Experiment) -> int:
    """Bytes of the images and labels that are arguments of the round."""
    federation = getattr(experiment.federation, 'tables', experiment.federation)
    shared = ('server_images', 'server_labels', 'client_images', 'client_labels', 'client_targets')
    return trees.nbytes([getattr(federation, name) for name in shared])
