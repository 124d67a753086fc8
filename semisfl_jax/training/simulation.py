"""An experiment round by round, from Python: no files, no output."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from semisfl_jax import config as config_lib
from semisfl_jax import failures, frequency, parallel
from semisfl_jax.errors import UserError
from semisfl_jax.parallel import compilation
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training import inputs
from semisfl_jax.training.evaluate import make_evaluate
from semisfl_jax.training.experiment import Experiment

ADAPTS_TO = ('loss_supervised', 'loss_unlabeled', 'lr')  # what the controller of K_s looks at


class Carry(NamedTuple):
    """What one round passes to the next."""

    state: Any  # of the method: `phases.State` in those of the package
    controller: frequency.FrequencyState  # of K_s

    @property
    def round(self) -> int:
        """Rounds completed."""
        return int(self.state.round)


class Simulation:
    """One experiment. A round is a function of what is carried: the same carry gives the same result, any time.

    The numbers are those of `train.run`, which trains the same experiment in a loop and writes files.
    """

    def __init__(self, experiment: Experiment):
        self.experiment = experiment
        self._upcoming: tuple[int, Iterator] = -1, iter(())  # round, inputs of it and all after it

    def init(self) -> Carry:
        """Before the first round."""
        own = self.experiment
        init = jax.jit(own.algorithm.init, out_shardings=parallel.replicated(own.mesh))
        return Carry(init(own.key), frequency.init(own.config.k_s, own.frequency))

    def round(self, carry: Carry) -> tuple[Carry, dict[str, float]]:
        """One round of the method: its cohort, its images and its K_s follow from the configuration and the carry.

        Returns:
          What the next round takes, and the metrics: `round`, `k_s` and those of the method, NaN where one does not
          apply. docs/metrics.md explains them.
        """
        own, index = self.experiment, carry.round
        federation, cohort = self._inputs(index)
        k_s = int(carry.controller.k_s)
        state, measured = self._round(own.key, carry.state, federation, cohort, np.int32(k_s))
        measured = failures.of_survivors(jax.device_get(measured), inputs.participation(own, index))
        measured = {name: float(value) for name, value in measured.items()}
        losses = (measured.get(name, math.nan) for name in ADAPTS_TO)
        controller = frequency.update(carry.controller, own.frequency, *losses)
        return Carry(state, controller), {'round': index + 1, 'k_s': k_s, **measured}

    def evaluate(self, carry: Carry) -> dict[str, float]:
        """Accuracy on the test set, a share, of every model that the method evaluates."""
        return self._evaluate(carry.state)

    def _inputs(self, index: int):
        """Those of a round. Rounds in order share one stream, which knows how often each client took part."""
        upcoming, stream = self._upcoming
        if upcoming != index:
            stream = inputs.inputs(self.experiment, index)
        self._upcoming = index + 1, stream
        return next(stream)

    @functools.cached_property
    def _round(self):
        return self._jit(self.experiment.algorithm.round)

    @functools.cached_property
    def _evaluate(self):
        own = self.experiment
        like = parallel.like(own.mesh, jax.eval_shape(own.algorithm.init, own.key))
        place = functools.partial(parallel.replicate, own.mesh) if own.mesh else jax.device_put
        test = own.dataset.test_images, own.dataset.test_labels
        return make_evaluate(own.algorithm.predict, like, *test, own.config.eval_batch_size, self._jit, place)

    def _jit(self, function):
        config = self.experiment.config
        return compilation.jit(function, precision=config.precision, deterministic=config.deterministic)


def build(config: ConfigDict) -> Simulation:
    """Loads the data, splits them, and builds model and method of a configuration of one seed.

    Raises:
      UserError: a mistake in the configuration, or data that are not there.
    """
    config_lib.check(config)
    if config.seeds:
        raise UserError(f'config.seeds={tuple(config.seeds)}: build() takes one experiment; give each its own seed')
    return Simulation(experiment_lib.build(config_lib.resolve(config)))
