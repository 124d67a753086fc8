"""The fast round against the explicit twin, and what must hold of a round whatever the numbers are."""

import dataclasses
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from semisfl_jax import core
from semisfl_jax.core import cross_entity, losses, queue, rng, supervised
from semisfl_jax.core.hparams import HParams, learning_rate, optimizer
from semisfl_jax.core.state import trainable, with_parameters
from semisfl_jax.core.supervised import BLOCK
from semisfl_jax.core.types import SplitParams
from tests import draws, linear, toy, twin
from tests.first_states import start
from tests.marks import slow_but
from tests.rows import HEADS, STUDENT, TEACHER, Row
from tests.trees import assert_trees_close

ROW = Row(f'{STUDENT} {TEACHER} {HEADS}', f'{STUDENT} student.proj')


VARIANTS = {
    'default': {},
    'single_ring': {'queue': 'single_ring'},
    'single_ring_ignoring_empty_slots': {'queue': 'single_ring', 'queue_empty_slots': 'ignore'},
    'single_ring_through_a_pre_round': {'queue': 'single_ring', 'pre_rounds': 1},
    'pre_round': {'pre_rounds': 1},
    'queue_off': {'queue': 'off'},
    'empty_slots_count': {'queue_empty_slots': 'count'},
    'client_teacher_ema': {'client_teacher_ema': True},
    'client_teacher_bn': {'client_teacher_bn': 'train'},
    'server_teacher_bn': {'server_teacher_bn': 'train_first_round'},
    'sampling': {'sampling': 'replicated'},
    'code': {
        'queue': 'single_ring',
        'client_teacher_bn': 'train',
        'server_teacher_bn': 'train_first_round',
        'sampling': 'replicated',
        'pre_rounds': 1,
    },
    'both_teacher_switches': {'client_teacher_ema': True, 'client_teacher_bn': 'train'},
    'student_supcon': {'supervised_references': 'student_supcon'},
    'no_warmup': {'ema_warmup': False},
    'plain_sgd': {'momentum': 0.0, 'nesterov': False, 'weight_decay': 0.0},
    'weights': {'consistency_weight': 0.5, 'clustering_weight': 2.0, 'contrastive_weight': 0.3},
    'client_labels': {'labeled_rows': 1},
    'small_queue': {'queue_size': 4},
    'threshold': {'threshold': 0.9},
    'temperature': {'temperature': 0.5},
}


# Two variants run on a model with convolutions and BatchNorm, the others on one of three matrices, as programs of that
# take about half of the time to compile.
LARGE = {'default': toy.model, 'code': functools.partial(toy.model, variance='unbiased')}
ROUNDS = (([0, 2, 4], [0, 0, 0], 3), ([1, 2, 4], [0, 1, 1], 2))  # cohort, its visits, K_s


def model_of(variant):
    return LARGE.get(variant, linear.model)()


@functools.cache
def fast_rounds(variant, model):
    """Two rounds of the package: first student, then (state, metrics) after each."""
    hparams = dataclasses.replace(toy.HPARAMS, **VARIANTS[variant])
    algorithm, key, state = start(hparams, model=model)
    # a louder top, so that some pseudo-labels of the first rounds reach the threshold and some do not
    louder = 2.0 if model is linear.model() else 5.0
    student = state.student._replace(top=jax.tree.map(lambda w: louder * w, state.student.top))
    state = state.replace(student=student, teacher=student)
    run, results = jax.jit(algorithm.round), []
    for ids, visits, k_s in ROUNDS:
        state, metrics = run(
            key, state, toy.federation(labels_at_clients=True), toy.cohort(ids, visits), jnp.int32(k_s)
        )
        results.append((state, metrics))
    return key, student, results


@pytest.mark.parametrize('variant', slow_but(VARIANTS))
def test_fast_round_equals_the_explicit_twin(variant):
    hparams, model = dataclasses.replace(toy.HPARAMS, **VARIANTS[variant]), model_of(variant)
    key, student, results = fast_rounds(variant, model)
    server = twin.Server(key, model, toy.VIEWS, hparams, student)
    for (state, metrics), (ids, visits, k_s) in zip(results, ROUNDS, strict=True):
        expected = server.run_round(toy.federation(labels_at_clients=True), ids, visits, k_s)
        for name, value in expected.items():
            np.testing.assert_allclose(metrics[name], value, rtol=2e-4, atol=1e-6, err_msg=name)
        assert expected.get('loss_clustering', 1) > 0
        assert_trees_close(state.student, server.student, rtol=2e-3, atol=2e-5)
        assert_trees_close(state.teacher, server.teacher, rtol=2e-3, atol=2e-5)
    if variant == 'default':  # the threshold splits the rows, so both branches were compared
        assert any(0 < metrics['mask_rate'] < 1 for _, metrics in results)


@pytest.mark.slow
@pytest.mark.parametrize('variant', sorted(VARIANTS.keys() - {'default'}))
def test_switches_change_the_numbers(variant):
    """No switch is read and ignored."""
    models = [fast_rounds(name, linear.model())[2][-1][0] for name in ('default', variant)]
    a, b = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves((m.student, m.teacher))]) for m in models)
    assert np.max(np.abs(a - b)) > 1e-6


@pytest.mark.parametrize(('split_index', 'projection'), slow_but([(1, 'mlp'), (2, 'linear'), (2, 'none'), (3, 'mlp')]))
def test_one_client_equals_unsplit_training(split_index, projection):
    """With N_h = 1 the cross-entity phase is SGD of one whole model on the client's batches (Eq. 7 and 8)."""
    hparams = dataclasses.replace(toy.HPARAMS, queue='off')
    model, federation, lr, key = toy.model(split_index, projection), toy.federation(), 0.05, rng.root(1)
    state = core.init_state(key, model, queue.build(hparams, model.projection_size))
    cohort = toy.cohort([3])
    after, _ = jax.jit(core.build_cross_entity(model, toy.VIEWS, hparams))(key, state, federation, cohort, lr)

    def logits_and_rows(variables, images, train, t):
        stream = rng.fold(key, 'cross_entity', 0)
        dropout = rng.fold(stream, 'student_dropout', 3, t), rng.fold(stream, 'top_dropout', 3, t)
        features, bottom = model.bottom(variables.bottom, toy.VIEWS.normalize(images), dropout[0], train)
        logits, top = model.top(variables.top, features, dropout[1], train)
        return logits, model.project(variables.proj, features), SplitParams(bottom, top, variables.proj)

    whole, sgd = state.student, optimizer(hparams, lr)
    momentum = sgd.init(trainable(whole))
    rows, _ = draws.client_rows(key, federation, cohort, hparams.batches)
    for t in range(hparams.k_u):
        images = federation.client_images[rows[0, t]]
        weak, strong = (
            getattr(toy.VIEWS, name)(rng.fold(key, 'cross_entity', 0, name, 3, t), images)
            for name in ('weak', 'strong')
        )
        logits, keys, _ = logits_and_rows(state.teacher, weak, False, t)
        confidence, guess = jnp.max(jax.nn.softmax(logits), -1), jnp.argmax(logits, -1)
        confident = confidence >= hparams.threshold
        references = losses.References(keys, guess, confident, jnp.ones_like(confident))

        def loss(parameters, whole=whole, strong=strong, references=references, t=t):
            logits, rows, moved = logits_and_rows(with_parameters(whole, parameters), strong, True, t)
            h_term = jnp.mean(losses.consistency_rows(logits, references.labels, references.confident))
            c_rows = losses.contrastive_rows(rows, references.labels, references, hparams.temperature)
            return h_term + jnp.mean(c_rows), moved

        gradient, whole = jax.grad(loss, has_aux=True)(trainable(whole))
        updates, momentum = sgd.update(gradient, momentum, trainable(whole))
        whole = with_parameters(whole, optax.apply_updates(trainable(whole), updates))
    assert_trees_close(after.student, whole, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_permuting_the_cohort_permutes_nothing_but_the_order():
    """Keys and rows belong to clients: another order gives the same model up to the order of sums."""
    results = []
    for ids in ([0, 2, 4], [4, 0, 2]):
        algorithm, key, state = start(dataclasses.replace(toy.HPARAMS, queue='off'))
        state, metrics = jax.jit(algorithm.round)(key, state, toy.federation(), toy.cohort(ids), jnp.int32(2))
        results.append((state.student, metrics))
    assert_trees_close(results[0][0], results[1][0], rtol=1e-4, atol=1e-6)
    chex.assert_trees_all_close(results[0][1], results[1][1], rtol=1e-4)


@pytest.mark.slow
def test_padding_of_a_cohort_changes_nothing():
    """A client of weight 0 and a client without data leave every number as it is."""
    federation = toy.federation()
    federation = federation.replace(size=federation.size.at[1].set(0))
    algorithm, key, state = start(dataclasses.replace(toy.HPARAMS, queue='off'))
    plain = jax.jit(algorithm.round)(key, state, federation, toy.cohort([2, 4]), jnp.int32(2))
    padded = toy.cohort([2, 4, 0, 1])._replace(weight=jnp.array([1.0, 1.0, 0.0, 1.0]))
    padded = jax.jit(algorithm.round)(key, state, federation, padded, jnp.int32(2))
    assert_trees_close(plain[0].student, padded[0].student, rtol=1e-4, atol=1e-6)
    chex.assert_trees_all_close(plain[1], padded[1], rtol=1e-4)


def test_one_compilation_whatever_k_s_and_cohort():
    """Of other methods, see tests/test_matrix.py."""
    algorithm, key, state = start()
    chex.clear_trace_counter()
    run = jax.jit(chex.assert_max_traces(algorithm.round, n=1), donate_argnums=1)
    federation = toy.federation(labels_at_clients=True)
    for k_s, ids in ((3, [0, 1]), (1, [2, 4]), (7, [1, 3])):
        state, metrics = run(key, state, federation, toy.cohort(ids), jnp.int32(k_s))
    assert run._cache_size() == 1
    assert int(state.step) == 3 + 1 + 7
    assert int(state.round) == 3
    assert np.isfinite(metrics['loss_supervised'])


@pytest.mark.parametrize(('most', 'at_once'), slow_but([(BLOCK, 6), (4, 3)], (BLOCK, 6)))
def test_views_that_are_made_ahead(most, at_once, monkeypatch):
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
        algorithm, key, state = start(hparams, model=linear.model())
        round_ = functools.partial(algorithm.round)  # built once, so it has to be a function that JAX has not seen
        results.append(jax.jit(round_)(key, state, federation, cohort, k_s))
    assert made == [1, at_once]
    assert set(asked) == {2 * hparams.server_batch_size, 2 * 2 * hparams.batch_size}  # two views of every image
    chex.assert_trees_all_close(*results, rtol=1e-6)


@pytest.mark.slow
def test_same_seed_same_bits_and_other_seed_other_bits():
    def final(seed):
        algorithm, key, state = start(seed=seed)
        state, _ = jax.jit(algorithm.round)(key, state, toy.federation(), toy.cohort([1, 4]), jnp.int32(2))
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(state.student)])

    np.testing.assert_array_equal(final(0), final(0))
    assert not np.array_equal(final(0), final(1))


@pytest.mark.slow
def test_teacher_moves_in_the_supervised_phase_alone():
    """After one supervised step it is the midpoint of the first and the new student, clients or not: a_1 is 1/2."""
    algorithm, key, state = start()
    first = state.student
    after, _ = jax.jit(algorithm.round)(key, state, toy.federation(), toy.cohort([1, 4]), jnp.int32(1))
    supervised = core.build_supervised(toy.model(), toy.VIEWS, toy.HPARAMS)
    middle, _ = jax.jit(supervised)(key, state, toy.federation(), jnp.int32(1), learning_rate(toy.HPARAMS, 0))
    midpoint = jax.tree.map(lambda a, b: (a + b) / 2, first, middle.student)
    assert_trees_close(after.teacher, midpoint, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_warm_up_rounds_are_supervised():
    hparams = dataclasses.replace(toy.HPARAMS, pre_rounds=1)
    algorithm, key, state = start(hparams)
    run = jax.jit(algorithm.round)
    state, metrics = run(key, state, toy.federation(), toy.cohort([1, 4]), jnp.int32(2))
    assert np.isnan(metrics['loss_consistency'])
    state, metrics = run(key, state, toy.federation(), toy.cohort([1, 4]), jnp.int32(2))
    assert np.isfinite(metrics['loss_consistency'])


def test_learning_rate():
    hparams = HParams()
    for h in (0, 1, 500, 999, 1000, 2000):
        expected = 0.005 + 0.5 * 0.015 * (1 + np.cos(np.pi * min(h / 1000, 1)))
        np.testing.assert_allclose(learning_rate(hparams, jnp.int32(h)), expected, rtol=1e-5)
    poly = HParams(lr=1e-4, lr_min=1e-5, lr_rounds=20, lr_schedule='poly')
    for h in (0, 1, 10, 19, 20, 30):
        expected = 1e-5 + 9e-5 * (1 - min(h / 20, 1)) ** 0.9
        np.testing.assert_allclose(learning_rate(poly, jnp.int32(h)), expected, rtol=1e-5)


@pytest.mark.slow
def test_pseudo_label_accuracy_counts_confident_unlabeled_rows_of_known_truth():
    """With threshold 0 every row counts: its mask rate is 1; with unknown truth nobody can tell."""
    hparams = dataclasses.replace(toy.HPARAMS, threshold=0.0)
    algorithm, key, state = start(hparams)
    federation = toy.federation()
    _, metrics = jax.jit(algorithm.round)(key, state, federation, toy.cohort([1, 4]), jnp.int32(2))
    assert float(metrics['mask_rate']) == 1.0
    share = float(metrics['pseudo_label_accuracy']) * hparams.k_u * 2 * hparams.batch_size
    assert share == pytest.approx(round(share), abs=1e-4)
    hidden = federation.replace(client_labels=jnp.full_like(federation.client_labels, -1))
    _, blind = jax.jit(algorithm.round)(key, state, hidden, toy.cohort([1, 4]), jnp.int32(2))
    assert np.isnan(blind['pseudo_label_accuracy'])
    for name in metrics.keys() - {'pseudo_label_accuracy'}:  # and the truth never trains
        np.testing.assert_array_equal(metrics[name], blind[name])
