"""An experiment round by round, from Python: no files, no output. The loop of a run is made of the same steps."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from semisfl_jax import config as config_lib
from semisfl_jax import core, costs
from semisfl_jax.config import failures
from semisfl_jax.core import compilation, frequency
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.frequency import FrequencyState
from semisfl_jax.core.types import Cohort, Federation
from semisfl_jax.tasks import score_key
from semisfl_jax.training import checks, evaluation, inputs, metrics
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training.evaluation import Scores, batched, compile_evaluate
from semisfl_jax.training.experiment import Experiment

_ADAPTS_TO = ('loss_supervised', 'loss_unlabeled', 'lr')  # what the controller of K_s looks at


class Carry(NamedTuple):
    """What one round passes to the next."""

    state: Any  # of the method: `phases.State` in those of the package
    controller: FrequencyState  # of K_s

    @property
    def round(self) -> int:
        """Rounds completed."""
        return int(self.state.round)


class Simulation:
    """One experiment. A round is a function of what is carried: the same carry gives the same result, any time.

    The numbers are those of `train`, which computes the same rounds in a loop.
    """

    def __init__(self, experiment: Experiment):
        self.experiment = experiment
        self._upcoming: tuple[int, Iterator] = -1, iter(())  # round, inputs of it and all after it

    def init(self) -> Carry:
        """Before the first round."""
        return Carry(init_state(self.experiment)(self.experiment.key), init_controller(self.experiment))

    def round(self, carry: Carry) -> tuple[Carry, dict[str, float]]:
        """One round of the method: its cohort, its images and its K_s follow from the configuration and the carry.

        Returns:
          What the next round takes, and the metrics: `round`, `k_s` and those of the method, NaN where one does not
          apply. docs/metrics.md explains them.
        """
        experiment, index = self.experiment, carry.round
        federation, cohort = self._inputs(index)
        k_s = int(carry.controller.k_s)
        state, metrics = self._round(experiment.key, carry.state, federation, cohort, np.int32(k_s))
        metrics, counted = jax.device_get((metrics, state.round))
        checks.check_counted(experiment.method.name, counted, index + 1)
        clients = inputs.participation(experiment, index)
        metrics, controller = after_round(experiment, carry.controller, metrics, clients)
        values = {name: float(value) for name, value in metrics.items()}
        return Carry(state, controller), {'round': index + 1, 'k_s': k_s, **values}

    def evaluate(self, carry: Carry) -> dict[str, float]:
        """Scores on the test (or validation) images, by output: in classification the accuracy, a share in [0, 1], of
        every model that the method evaluates; in dense tasks the score of every task."""
        task_of = self.experiment.task_of
        return {name: scores[task_of(name).score.name] for name, scores in self._evaluate(carry.state).items()}

    def _inputs(self, index: int) -> tuple[Federation, Cohort]:
        """Those of a round. Rounds in order share one stream, which knows how often each client took part."""
        upcoming, stream = self._upcoming
        if upcoming != index:
            stream = inputs.inputs(self.experiment, index)
        self._upcoming = index + 1, stream
        return next(stream)

    @functools.cached_property
    def _round(self) -> jax.stages.Wrapped:
        return compile_with(self.experiment.config)(self.experiment.algorithm.round)

    @functools.cached_property
    def _evaluate(self) -> Callable[[Any], Scores]:
        like = jax.eval_shape(self.experiment.algorithm.init, self.experiment.key)
        return build_evaluate([self.experiment], like, evaluated([self.experiment]))[0]


def build(config: ConfigDict) -> Simulation:
    """Loads the data, splits them, and builds model and method of a configuration of one seed.

    Raises:
      UserError: an invalid configuration, or missing data.
    """
    config_lib.check(config)
    if config.seeds:
        raise UserError(
            f'config.seeds={tuple(config.seeds)}: build() takes a single seed; call it once per seed, with config.seed'
        )
    return Simulation(experiment_lib.build(config_lib.resolve(config)))


def init_state(experiment: Experiment) -> jax.stages.Wrapped:
    """The jitted function: root key -> state before the first round, on every device."""
    return jax.jit(experiment.algorithm.init, out_shardings=core.replicated(experiment.mesh))


def init_controller(experiment: Experiment) -> FrequencyState:
    """The controller of K_s before the first round."""
    return frequency.init(experiment.config.k_s, experiment.frequency)


def after_round(
    experiment: Experiment, controller: FrequencyState, metrics: dict[str, np.ndarray], clients: costs.Clients | None
) -> tuple[dict[str, np.ndarray], FrequencyState]:
    """What follows from the metrics of a round.

    Args:
      experiment: one trial.
      controller: of K_s, before the round.
      metrics: of the round, on the host.
      clients: their participation, see `inputs.participation`.

    Returns:
      The metrics, without those of clients if all were lost, and the controller that has seen them.
    """
    metrics = failures.of_survivors(metrics, clients)
    loss_s, loss_u, lr = (float(metrics.get(name, math.nan)) for name in _ADAPTS_TO)
    return metrics, frequency.update(controller, experiment.frequency, loss_s, loss_u, lr)


def evaluated(trials: Sequence[Experiment]) -> list[Any]:
    """[R] what `batched` returns, on every device, of the images on which each trial is evaluated.

    Trials share one copy of the test images; each has its own validation images, unless these are of one split.
    """
    place, size = _place(trials[0]), trials[0].config.eval_batch_size

    def of_trial(trial: Experiment) -> Any:
        return batched(trial.dataset.test_images, trial.test_truth, size, place, trial.dataset.test_sizes)

    return _shared(trials, trials, of_trial)


def _shared(trials: Sequence[Experiment], of_trials: Sequence[Any], make: Callable[[Any], Any]) -> list[Any]:
    """[R] what `make` makes of what each trial has, once for all trials that are evaluated on the same images."""
    made: dict[str, Any] = {}
    for trial, own in zip(trials, of_trials, strict=True):
        if trial.evaluated_on not in made:
            made[trial.evaluated_on] = make(own)
    return [made[trial.evaluated_on] for trial in trials]


def build_evaluate(trials: Sequence[Experiment], like: Any, images: Sequence[Any]) -> list[Callable[[Any], Scores]]:
    """Compiles the evaluation of R trials once, for states with the shapes of `like`, on images from `evaluated`.

    Returns:
      [R] functions: state of the trial -> {output: {score: value}}.

    Raises:
      UserError: the method returns no outputs of their tasks.
    """
    first = trials[0]
    like, jit = core.like(first.mesh, like), compile_with(first.config)
    predict = checks.checked_predict(first.method.name, first.algorithm, first.task_of)
    evaluate = compile_evaluate(predict, like, images[0], first.task_of, jit)
    return [functools.partial(evaluate, of_trial) for of_trial in images]


def trivial_scores(trials: Sequence[Experiment], images: Sequence[Any]) -> list[dict[str, dict[str, float | None]]]:
    """[R] the scores of the trivial predictions of dense tasks: {one of `trivial.NAMES`: {key of a score: value}}.

    Args:
      trials: R.
      images: of each, from `evaluated`.
    """
    first, place, jit = trials[0], _place(trials[0]), compile_with(trials[0].config)

    def by_key(scores: Scores) -> dict[str, float | None]:
        judged = {name: task.score.name for name, task in first.algorithm.tasks.items() if name in scores}
        return {score_key(name, score): metrics.plain(scores[name][score]) for name, score in judged.items()}

    def scored(predict: Callable, states: Sequence[Any], inputs: Sequence[Any]) -> list[dict[str, float | None]]:
        evaluate = compile_evaluate(predict, states[0], inputs[0], first.task_of, jit)
        return [by_key(evaluate(*of_trial)) for of_trial in zip(inputs, states, strict=True)]

    found: dict[str, list[dict[str, float | None]]] = {}
    if first.algorithm.tasks:
        pixels = [jax.tree.map(place, evaluation.trivial_constants(trial)) for trial in trials]
        found['constant'] = scored(evaluation.predict_constants, pixels, images)
    objects = [maps for trial in trials if (maps := evaluation.object_maps(trial)) is not None]
    if objects:
        size = first.config.eval_batch_size
        batches = _shared(trials, objects, lambda maps: batched(maps, {}, size, place).images)
        inputs = [of_trial._replace(images=maps) for maps, of_trial in zip(batches, images, strict=True)]
        found['objects'] = scored(evaluation.predict_objects, [()] * len(trials), inputs)
    return [{name: of_trials[r] for name, of_trials in found.items()} for r in range(len(trials))]


def _place(experiment: Experiment) -> Callable[[np.ndarray], Any]:
    """What puts an array on every device of an experiment."""
    mesh = experiment.mesh
    return functools.partial(core.replicate, mesh) if mesh else jax.device_put


def compile_with(config: ConfigDict) -> Callable:
    """`compilation.jit` with the precision and determinism of a configuration."""
    return functools.partial(compilation.jit, precision=config.precision, deterministic=config.deterministic)
