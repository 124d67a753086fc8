"""Several seeds in one program hold and stream the images once, and do no needless work."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import config as config_lib
from semisfl_jax import core
from semisfl_jax.training import experiment
from semisfl_jax.training import inputs as inputs_lib
from semisfl_jax.training.driver import Driver
from tests import runs
from tests.trials import SEEDS, WITHOUT_VIEWS


def prepared(trial_map, **changes):
    """Experiments of SEEDS, and the program of their round as equations, not compiled."""
    config = config_lib.resolve(runs.config(seeds=SEEDS, **changes))
    experiments = experiment.build_trials(config_lib.trials(config))
    driver = Driver(experiments, trial_map)
    state = jax.eval_shape(lambda: driver.stack([trial.algorithm.init(trial.key) for trial in experiments]))
    inputs = next(driver.inputs(0))[:2]
    return (
        experiments,
        inputs,
        jax.make_jaxpr(driver.round)(driver.key, state, *inputs, jnp.ones(len(SEEDS), jnp.int32)),
    )


def equations(jaxpr):
    """All equations of a program, with those of inner functions, loops and branches."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(list(equation.params.values())):
            inner = getattr(value, 'jaxpr', value)
            if hasattr(inner, 'eqns'):
                yield from equations(inner)


@pytest.mark.parametrize('trial_map', ['loop', 'vmap'])
def test_images_are_held_once_and_never_copied(trial_map):
    experiments, (federation, _), program = prepared(trial_map)
    images = len(experiments[0].dataset.train_images)
    assert federation.server_images.shape == federation.client_images.shape == (images, 8, 8, 1)
    for trial in experiments:
        for name in ('server_images', 'client_images'):
            assert getattr(trial.federation, name) is federation.server_images
        rows = np.asarray(trial.federation.server_index)
        np.testing.assert_array_equal(rows, trial.partition.server_index)  # every image is somebody's
        np.testing.assert_array_equal(
            federation.server_images[rows], trial.dataset.train_images[trial.partition.server_index]
        )
    assert federation.index.shape[:2] == (3, 10)
    shapes = {variable.aval.shape for equation in equations(program.jaxpr) for variable in equation.outvars}
    assert len(shapes) > 100
    assert not [shape for shape in shapes if images in shape]


def test_streamed_images_are_those_of_each_trial():
    config = config_lib.resolve(runs.config(seeds=SEEDS, data__residency='host'))
    experiments = experiment.build_trials(config_lib.trials(config))
    federation, cohorts, _ = next(Driver(experiments, 'loop').inputs(3))
    assert federation.client_images.shape == (3, 3 * 2 * 4, 8, 8, 1)  # R, A * K_u * B
    labeled = set().union(*(trial.partition.server_index.tolist() for trial in experiments))
    assert federation.server_images.shape == (len(labeled), 8, 8, 1)
    for r, trial_config in enumerate(config_lib.trials(config)):
        single_federation, cohort, _ = next(inputs_lib.inputs(experiment.build(trial_config), 3))
        np.testing.assert_array_equal(federation.client_images[r], single_federation.client_images)
        np.testing.assert_array_equal(federation.client_labels[r], single_federation.client_labels)
        np.testing.assert_array_equal(cohorts.participations[r], cohort.participations)
        np.testing.assert_array_equal(
            federation.server_images[federation.server_index[r]],
            single_federation.server_images[single_federation.server_index],
        )


@pytest.mark.slow
def test_rounds_without_clients_stay_a_branch_at_once():
    """All trials are in the same round, so no trial computes what `pre_rounds` leaves out."""

    def branches(**changes):
        program = prepared('vmap', **WITHOUT_VIEWS, **changes)[2]
        return sum(equation.primitive.name == 'cond' for equation in equations(program.jaxpr))

    assert branches(pre_rounds=1) == branches(pre_rounds=0) + 1


def test_the_choice_of_a_map():
    assert core.trial_map('auto')[0] == ('loop' if jax.default_backend() == 'cpu' else 'vmap')
    x, y = jnp.arange(6.0).reshape(3, 2), jnp.ones(2)
    for name in ('loop', 'vmap'):
        result = core.trial_map(name)[1](lambda a, b: {'sum': a + 2 * b}, in_axes=(None, 0))(y, x)
        np.testing.assert_array_equal(result['sum'], y + 2 * x)
