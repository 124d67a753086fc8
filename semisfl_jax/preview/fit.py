"""Whether a run fits into the memory of a device."""

from __future__ import annotations

from typing import NamedTuple

import jax

from semisfl_jax.core import trees
from semisfl_jax.preview import shapes
from semisfl_jax.preview.program import Program
from semisfl_jax.preview.targets import Target
from semisfl_jax.training.experiment import Experiment


class Need(NamedTuple):
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


def need(experiment: Experiment, round_: Program, evaluation: Program) -> Need:
    """What a run needs: data, state and both programs, and the larger of their intermediate results."""
    state = trees.nbytes(jax.eval_shape(experiment.algorithm.init, experiment.key))
    # TPUs pad arrays; of the state, the evaluation takes only what it reads
    test_set = max(trees.nbytes(shapes.test_set(experiment)), evaluation.memory.arguments - state)
    programs = round_.memory, evaluation.memory
    at_work = max(memory.outputs + memory.temporary for memory in programs)
    code = sum(memory.code for memory in programs)
    return Need(round_.memory.arguments + test_set + code + at_work, shared=_images(experiment) + test_set + code)


def _images(experiment: Experiment) -> int:
    """Bytes of the images and labels that are arguments of the round."""
    federation = getattr(experiment.federation, 'tables', experiment.federation)
    shared = ('server_images', 'server_labels', 'client_images', 'client_labels', 'client_targets')
    return trees.nbytes([getattr(federation, name) for name in shared])
