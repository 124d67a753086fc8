"""Computes an experiment round by round, from Python: no files, no output. The loop of a run uses the same `driver`."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
from ml_collections import ConfigDict

from semisfl_jax import config as config_lib
from semisfl_jax import data
from semisfl_jax.base.errors import UserError
from semisfl_jax.core import frequency
from semisfl_jax.training import evaluation
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training.driver import Driver, RoundInputs, init_state
from semisfl_jax.training.experiment import Experiment, compile_with


class Carry(NamedTuple):
    """The values that one round passes to the next."""

    state: Any  # of the method: `core.State` in those of the package
    controller: frequency.FrequencyState  # of K_s

    @property
    def round(self) -> int:
        """Number of completed rounds."""
        return int(self.state.round)


class Simulation:
    """One experiment. A round is a function of what is carried: the same carry always gives the same result.

    The numbers are those of `train`, which computes the same rounds in a loop.
    """

    def __init__(self, experiment: Experiment):
        self.experiment = experiment
        self._driver = Driver([experiment])
        self._upcoming: tuple[int, Iterator[RoundInputs]] = -1, iter(())  # round, and inputs from that round on

    def init(self) -> Carry:
        """Returns the carry before the first round."""
        return Carry(init_state(self.experiment)(self.experiment.key), frequency.init(self.experiment.frequency))

    def round(self, carry: Carry) -> tuple[Carry, dict[str, float]]:
        """Computes one round of the method: cohort, images and K_s follow from the configuration and the carry.

        Returns:
          The carry for the next round, and the metrics: `round`, `k_s` and those of the method, NaN where one does not
          apply. docs/metrics.md explains them.
        """
        index, stream = self._upcoming
        if index != carry.round:  # rounds in order share a stream, which counts how often each client took part
            index, stream = carry.round, self._driver.inputs(carry.round)
        self._upcoming = index + 1, stream
        inputs, controllers = next(stream), [carry.controller]
        state, measured = self._round(*self._driver.arguments(carry.state, controllers, inputs))
        (controller,), (metrics,) = self._driver.finish(carry.round, controllers, state, measured, inputs.clients)
        values = {name: float(value) for name, value in metrics.items()}
        return Carry(state, controller), {'round': index + 1, 'k_s': int(carry.controller.k_s), **values}

    def evaluate(self, carry: Carry) -> dict[str, float]:
        """Computes scores on the test (or validation) images, by output.

        In classification it is the accuracy, a share in [0, 1], of every model that the method evaluates;
        in dense tasks, the score of every task.
        """
        task_of = self.experiment.task_of
        return {name: scores[task_of(name).score.name] for name, scores in self._evaluate(carry.state).items()}

    @functools.cached_property
    def _round(self) -> jax.stages.Wrapped:
        return compile_with(self.experiment.config)(self._driver.round())

    @functools.cached_property
    def _evaluate(self) -> Callable[[Any], evaluation.Scores]:
        return evaluation.build_evaluate([self.experiment], evaluation.evaluated([self.experiment]))[0]


def build(config: ConfigDict, dataset: data.Dataset | None = None) -> Simulation:
    """Loads the data, splits them, and builds model and method of a configuration of one seed.

    Args:
      config: a configuration, as `get_config` returns it.
      dataset: data in memory, as in `train`.

    Raises:
      UserError: an invalid configuration, or missing data.
    """
    config = experiment_lib.with_data(config, dataset)
    config_lib.check(config)
    if config.seeds:
        raise UserError(
            f'config.seeds={tuple(config.seeds)}: build() takes a single seed; call it once per seed, with config.seed'
        )
    return Simulation(experiment_lib.build(config_lib.resolve(config), dataset))
