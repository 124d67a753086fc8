"""SemiFL: rounds against the plain twin, who sits out, both orders, reductions."""

import dataclasses
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import compare, core
from semisfl_jax.algorithms.semifl import SemiFL, build_statistics
from semisfl_jax.core import rng
from semisfl_jax.core.hparams import Local, learning_rate
from semisfl_jax.core.state import trainable
from semisfl_jax.training import diagnostics
from tests import linear, runs, toy
from tests.marks import slow_but
from tests.rows import STUDENT, Row
from tests.semifl_rounds import FEDERATION, MODEL, PASS, SMALL, build, first, play
from tests.semifl_twin import LinearTwin, Twin
from tests.trees import assert_trees_close

ROW = Row(f'{STUDENT} clients server', f'{STUDENT} clients server')  # clients keep their optimizers


# --- rounds

CASES = {
    'default': {},
    'server first': {'options': SemiFL(order='server_first', **PASS)},
    'clients first, epochs, keeps momentum': {
        'local': Local(epochs=2, optimizer_state='kept'),
        'options': SemiFL(order='clients_first', batch_norm_data='server', clip_norm=0.3, global_momentum=0.9, **PASS),
        'lr_min': 0.01,
    },
}
ROUNDS = ([0, 2, 4], [1, 3, 4])


@pytest.mark.parametrize(
    ('case', 'twin_of'),
    slow_but([('default', LinearTwin), *((case, Twin) for case in CASES)], ('default', LinearTwin)),
)
def test_rounds_equal_the_plain_twin(case, twin_of):
    changes, model = CASES[case], MODEL if twin_of is Twin else linear.model()
    algorithm, run = build(model=model, **changes)
    hparams, state, key = dataclasses.replace(SMALL, **changes), first(algorithm), rng.root(0)
    twin = twin_of(key, model, toy.VIEWS, hparams, state.student)
    rates = []
    for index, ids in enumerate(ROUNDS):
        state, metrics = run(key, state, FEDERATION, toy.cohort(ids), jnp.int32(2))
        expected = twin.run_round(FEDERATION, ids, 2, float(learning_rate(hparams, index)))
        for name, value in expected.items():
            np.testing.assert_allclose(metrics[name], value, rtol=5e-4, atol=1e-5, err_msg=name)
        assert_trees_close(state.student, twin.student, rtol=2e-3, atol=5e-5)
        rates.append(float(metrics['mask_rate']))
        np.testing.assert_allclose(metrics['loss_local'], metrics['loss_fix'] + metrics['loss_mix'], rtol=1e-5)
        np.testing.assert_array_equal(metrics['loss_local'], metrics['loss_unlabeled'])
    assert all(0.05 < rate < 0.95 for rate in rates)
    assert twin.relabeled > 0  # labels that were made anew in training would have been others
    assert algorithm.headline == 'student'
    images = FEDERATION.client_images
    predictions, x = algorithm.predict(state, images), toy.VIEWS.normalize(images)
    expected = {'student': twin.student}
    if case == 'server first':  # two moments of one round
        expected['after_server'] = twin.after_server
    assert predictions.keys() == expected.keys()
    for name, variables in expected.items():
        np.testing.assert_allclose(predictions[name], twin.logits(variables, x)[0], rtol=5e-3, atol=5e-4)
    if case == 'server first':
        assert not np.allclose(predictions['student'], predictions['after_server'], atol=0.05)


@pytest.mark.slow
def test_it_is_judged_where_its_authors_judge_it():
    """Clients, average, server, statistics, test: `runExperiment` in train_classifier_ssfl.py of their code."""
    assert SemiFL().order == 'clients_first'
    given = runs.config(algorithm='semifl')
    assert given.semifl.order == 'clients_first'


@pytest.mark.slow
def test_where_a_round_ends_with_the_average_a_run_evaluates_after_the_server_too(tmp_path, capsys):
    """In the lines of metrics.jsonl, the diagnostics and the comparison, beside what it is judged by."""
    changes = {'threshold': 0.115, 'semifl__order': 'server_first', 'diagnostics_every': 1}  # some are confident soon
    assert runs.run(tmp_path, algorithm='semifl', rounds=2, **changes) == 0
    accuracy = {'student': [], 'after_server': []}
    for number, record in enumerate(runs.records(tmp_path), start=1):
        arrays = diagnostics.load(tmp_path, number)
        assert 'agreement' not in arrays
        assert not np.array_equal(arrays['student_test'], arrays['after_server_test'])
        for name, values in accuracy.items():
            table = arrays[f'{name}_test']
            values.append(table.trace() / table.sum())
            assert record[f'{name}_accuracy'] == pytest.approx(values[-1])
    assert json.loads((tmp_path / 'summary.json').read_text())['headline'] == 'student'
    capsys.readouterr()
    assert compare.main(['compare', str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f'  semifl: after_server {100 * np.mean(accuracy["after_server"]):.2f} ')
    assert lines[1].startswith(f'* semifl: student {100 * np.mean(accuracy["student"]):.2f} ')


KEPT = {'local': Local(epochs=1, optimizer_state='kept'), 'threshold': 0.75}


def kept(ids, state=None, **options):
    """A round of up to five clients, the others being padding."""
    padding = 5 - len(ids)
    return play([*ids, *[ids[0]] * padding], state, weight=[1.0] * len(ids) + [0.0] * padding, **KEPT, **options)


@pytest.mark.slow
def test_a_client_without_a_confident_image_sits_out():
    """It is in no average and keeps its optimizer, and its images count in the mask rate."""
    algorithm, _ = build(**KEPT)
    idle, busy, begin = 0, 4, first(algorithm)
    begin = begin.replace(clients=jax.tree.map(lambda x: x + 0.01, begin.clients))
    fresh, _ = play([idle] * 5, begin, k_s=0, weight=[0.0] * 5, **KEPT)  # the same weights, with statistics
    logits = algorithm.predict(fresh, FEDERATION.client_images)['student']
    doubtful = jnp.argsort(jnp.max(jax.nn.softmax(logits), axis=-1))[: int(FEDERATION.size[idle])]
    index = FEDERATION.index.at[idle, : len(doubtful)].set(doubtful)
    options = {'k_s': 0, 'federation': FEDERATION.replace(index=index)}
    _, metrics = kept([idle], begin, **options)
    assert (metrics['clients_sitting_out'], metrics['mask_rate']) == (1, 0)
    alone, before = kept([busy], begin, **options)
    beside, metrics = kept([busy, idle], begin, **options)
    assert_trees_close(beside.student, alone.student, rtol=1e-6, atol=1e-7)
    assert (before['clients_sitting_out'], metrics['clients_sitting_out']) == (0, 0.5)
    sizes = np.asarray(FEDERATION.size)
    expected = before['mask_rate'] * sizes[busy] / (sizes[busy] + sizes[idle])
    np.testing.assert_allclose(metrics['mask_rate'], expected, rtol=1e-5)
    for old, new in zip(jax.tree.leaves(begin.clients), jax.tree.leaves(beside.clients), strict=True):
        np.testing.assert_array_equal(old[idle], new[idle])
        assert not np.array_equal(old[busy], new[busy])


@pytest.mark.slow
def test_when_all_sit_out_the_server_makes_no_step():
    """Not even one of its momentum, which it keeps. So the method is supervised training, where it does not clip."""
    never = {'threshold': 1.0, 'options': SemiFL(clip_norm=0.0, **PASS)}
    start = first(build(**never)[0])
    start = start.replace(server=jax.tree.map(lambda x: x + 0.1, start.server))
    state, metrics = play([0, 2, 4], start, k_s=3, **never)
    assert metrics['clients_sitting_out'] == 1
    assert metrics['loss_local'] == 0
    assert np.isnan(metrics['pseudo_label_accuracy'])
    chex.assert_trees_all_equal(state.server, start.server)
    other, supervised = build('supervised_only', **never)
    begin = other.init(rng.root(0)).replace(student=start.student)
    expected, others = supervised(rng.root(0), begin, FEDERATION, toy.cohort([0, 2, 4]), jnp.int32(3))
    assert_trees_close(trainable(state.student), trainable(expected.student), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(metrics['loss_supervised'], others['loss_supervised'], rtol=1e-6)


@pytest.mark.slow
def test_the_orders_are_one_alternation():
    """Server, clients, server: begun with the server alone, one order is the other one, its rounds cut elsewhere."""
    changes = {order: {'options': SemiFL(order=order, **PASS)} for order in ('server_first', 'clients_first')}
    ids, nobody = [1, 2, 4], {'weight': [0.0, 0.0, 0.0]}
    start = first(build(**changes['server_first'])[0])
    a, metrics = play(ids, start.replace(round=jnp.int32(1)), **changes['server_first'])
    a, _ = play(ids, a, **nobody, **changes['server_first'])
    b, _ = play(ids, start, **nobody, **changes['clients_first'])
    b, others = play(ids, b, **changes['clients_first'])
    assert metrics['clients_sitting_out'] < 1
    np.testing.assert_allclose(metrics['loss_local'], others['loss_local'], rtol=1e-4)
    assert_trees_close(a.student, b.student, rtol=1e-3, atol=1e-5)
    chex.assert_trees_all_close(a.server.momentum, b.server.momentum, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_stale_statistics_label_nothing():
    """Whatever statistics a state comes with, the server's order and the first round of the other take fresh ones."""
    for order in ('server_first', 'clients_first'):
        changes = {'options': SemiFL(order=order, **PASS)}
        start = first(build(**changes)[0])
        spoilt = jax.tree.map(lambda x: x + 3.0, start.student.bottom['batch_stats'])
        other = start.replace(student=start.student._replace(bottom={**start.student.bottom, 'batch_stats': spoilt}))
        (a, metrics), (b, others) = (play([1, 2, 4], s, **changes) for s in (start, other))
        chex.assert_trees_all_equal(a.student, b.student)
        chex.assert_trees_all_equal(metrics, others)


def test_without_batch_norm_there_is_no_pass():
    views, untouched = toy.VIEWS, toy.model().init(rng.root(0))
    plain = untouched._replace(**{name: {'params': getattr(untouched, name)['params']} for name in ('bottom', 'top')})
    run = build_statistics(toy.model(), views, 'all', 8)
    assert run(rng.root(0), plain, FEDERATION) is plain
    assert run(rng.root(0), untouched, FEDERATION) is not untouched


@pytest.mark.slow
def test_the_order_of_the_cohort_and_its_padding_change_nothing():
    plain, metrics = kept([1, 2, 4])
    shuffled, others = kept([4, 1, 2])
    filled, more = play([1, 2, 4, 4, 3], weight=[1.0, 1.0, 1.0, 0.0, 0.0], **KEPT)
    for other, measured in ((shuffled, others), (filled, more)):
        assert_trees_close(plain.student, other.student, rtol=1e-4, atol=1e-6)
        chex.assert_trees_all_close((plain.clients, plain.server), (other.clients, other.server), rtol=1e-4, atol=1e-6)
        chex.assert_trees_all_close(metrics, measured, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize('how', [{'chunk': 2}, {'how': 'loop'}])
def test_layouts_give_the_same_numbers(how):
    plain, metrics = kept([0, 1, 2, 4])
    other, measured = kept([0, 1, 2, 4], axis=core.client_axis(**how))
    assert_trees_close(plain.student, other.student, rtol=1e-4, atol=1e-6)
    chex.assert_trees_all_close(plain.clients, other.clients, rtol=1e-4, atol=1e-6)
    chex.assert_trees_all_close(metrics, measured, rtol=1e-4)


@pytest.mark.slow
def test_warm_up_rounds_leave_clients_out():
    for order in ('server_first', 'clients_first'):
        changes = {'pre_rounds': 1, 'options': SemiFL(order=order, **PASS)}
        one, metrics = play([1, 2, 4], **changes)
        assert np.isnan(metrics['loss_local'])
        server, _ = play([1, 2, 4], weight=[0.0, 0.0, 0.0], options=changes['options'])
        chex.assert_trees_all_close(one.student, server.student, rtol=1e-5, atol=1e-6)
        _, metrics = play([1, 2, 4], one, **changes)
        assert metrics['loss_local'] > 0
