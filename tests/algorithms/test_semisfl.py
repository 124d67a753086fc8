"""SemiSFL: rounds against NumPy, and views that are made ahead."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import pytest

from semisfl_jax import algorithms
from semisfl_jax.core import cross_entity, rng, supervised
from semisfl_jax.core.supervised import BLOCK
from tests.helpers import linear, numpy_rounds, toy
from tests.helpers.marks import slow_but
from tests.helpers.rows import HEADS, STUDENT, TEACHER, Row

ROWS = {'semisfl': Row(f'{STUDENT} {TEACHER} {HEADS}', f'{STUDENT} student.proj')}
CASES = {
    'the paper': ('semisfl', {'labeled_rows': 1, 'weight_decay': 0.1}),
    'the code': (
        'semisfl',
        {
            'queue': 'single_ring',
            'client_teacher_bn': 'train',
            'server_teacher_bn': 'train_first_round',
            'sampling': 'replicated',
            'pre_rounds': 1,
        },
    ),
    'other options': (
        'semisfl',
        {
            'queue_empty_slots': 'count',
            'queue_stride': 3,
            'supervised_references': 'student_supcon',
            'client_teacher_ema': True,
            'ema_decay': 0.7,
            'ema_warmup': False,
            'momentum': 0.5,
            'nesterov': False,
            'temperature': 0.5,
            'consistency_weight': 0.5,
            'clustering_weight': 2.0,
            'contrastive_weight': 0.3,
        },
    ),
    'the ring without empty slots': ('semisfl', {'queue': 'single_ring', 'queue_empty_slots': 'ignore'}),
    'no queue': ('semisfl', {'queue': 'off', 'pre_rounds': 1, 'client_teacher_ema': True}),
}


@pytest.mark.parametrize('case', slow_but(CASES, 'the paper', 'the code', 'other options'))
def test_rounds_equal_the_ones_in_numpy(case):
    numpy_rounds.check_split(*CASES[case])


@pytest.mark.slow
@pytest.mark.parametrize(('most', 'at_once'), [(BLOCK, 6), (4, 3)])
def test_views_made_ahead_change_no_number(most, at_once, monkeypatch):
    """As for a GPU: of all steps at once, or of as many iterations as fit, and step by step at the server."""
    hparams = dataclasses.replace(toy.HPARAMS, k_u=6)
    federation, cohort, k_s = toy.federation(), toy.cohort([1, 3]), jnp.int32(BLOCK + 2)
    asked, made = [], []

    def watched(phase, *arguments):
        made.append(cross_entity_at_once(phase, *arguments))
        return made[-1]

    cross_entity_at_once = cross_entity.iterations_at_once
    monkeypatch.setattr(cross_entity, 'iterations_at_once', watched)
    results = []
    for steps in (1, most):
        for module in (supervised, cross_entity):
            name, ask = 'steps_at_once', lambda images, views, steps=steps: asked.append(views) or steps
            monkeypatch.setattr(module, name, ask)
        algorithm, key = algorithms.build('semisfl', linear.model(), toy.VIEWS, hparams), rng.root(0)
        state = algorithm.init(key)
        round_ = functools.partial(algorithm.round)  # built once, so it has to be a function that JAX has not seen
        results.append(jax.jit(round_)(key, state, federation, cohort, k_s))
    assert made == [1, at_once]
    assert set(asked) == {2 * hparams.server_batch_size, 2 * 2 * hparams.batch_size}  # two views of every image
    chex.assert_trees_all_close(*results, rtol=1e-6)
