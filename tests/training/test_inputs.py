"""What a round reads: its images on the host, and how many each client has."""

import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import algorithms, core
from semisfl_jax import config as config_lib
from semisfl_jax.core import sampling
from semisfl_jax.core.types import Cohort
from semisfl_jax.training import experiment, inputs
from tests.helpers import runs
from tests.helpers.one_pass import METHOD

LABELS = {'data__client_labels': 20, 'federation__mu': 1}


@pytest.mark.slow
def test_images_on_the_host_are_gathered_in_the_order_of_the_run():
    """60 batches of 4 from about 130 images: replicated lists hold each image twice."""
    cohort, found = Cohort(jnp.array([1, 2]), jnp.ones(2), jnp.array([0, 3])), []
    for order in ('epochs', 'replicated'):
        built = experiment.build(config_lib.resolve(runs.config(sampling=order, data__residency='host', k_u=60)))
        found.append(np.asarray(inputs.rows(built, cohort)))
        tables, batches = built.federation.tables, built.hparams.batches
        expected, _ = sampling.client_rows(built.key, tables, cohort, batches._replace(order=order))
        np.testing.assert_array_equal(found[-1], expected)
    assert not np.array_equal(*found)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(algorithms.METHODS, 'one_pass', METHOD)


@pytest.mark.parametrize(
    ('changes', 'expected'),
    [
        ({}, 'unlabeled'),
        (LABELS, 'both'),
        ({'algorithm': 'fedavg', 'local__objective': 'supervised', **LABELS}, 'labeled'),
    ],
)
def test_the_host_counts_the_images_of_a_client_that_the_round_weights_it_by(changes, expected):
    config = config_lib.resolve(runs.config(**({'algorithm': 'one_pass', **changes}), local__weighting='samples'))
    built = experiment.build(config)
    valid, cohort = inputs.participation(built, 0), next(inputs.cohorts(built, 0))[0]
    parts = built.partition.client_index, built.partition.client_labeled_index
    unlabeled, labeled = (np.array([len(rows[n]) for n in valid.ids]) for rows in parts)
    counts = {'unlabeled': unlabeled, 'labeled': labeled, 'both': unlabeled + labeled}
    assert valid.images.tolist() == counts[expected].tolist()
    state = built.algorithm.init(built.key)
    _, part = core.plan(built.key, state, built.federation, cohort, built.hparams, built.method.reads)
    assert part.share.tolist() == counts[expected].tolist()
