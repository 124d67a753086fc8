"""`pseudo_labels`: the true labels in place of a method's pseudo-labels, or none. Otherwise nothing reads the truth."""

import dataclasses
import itertools
import json
import types

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import algorithms, data
from semisfl_jax import config as config_lib
from semisfl_jax.algorithms import fed_shvr
from semisfl_jax.base.errors import UserError
from semisfl_jax.core import frequency, sampling
from semisfl_jax.core.hparams import HParams, Local, Uda
from semisfl_jax.core.objectives import build_rule
from semisfl_jax.core.teacher import assign_pseudo_labels, label_logits
from semisfl_jax.data import sources
from semisfl_jax.lab.plots import style
from semisfl_jax.runs import group, read_run
from semisfl_jax.training import driver, experiment
from tests import golden
from tests.helpers import flow, needs, runs

# Methods that make pseudo-labels, in the forms that make them in other ways.
EXTRA = {
    'semisfl, labels at clients': {'algorithm': 'semisfl', 'data.client_labels': 20, 'federation.mu': 1},
    'semisfl, the ring': {'algorithm': 'semisfl', 'queue': 'single_ring'},
    'fedavg, uda': {'algorithm': 'fedavg', 'local.objective': 'uda', 'data.client_labels': 20, 'federation.mu': 1},
    'fedavg, pseudo_label': {'algorithm': 'fedavg', 'local.objective': 'pseudo_label'},
    'fedavg, mean_teacher': {'algorithm': 'fedavg', 'local.objective': 'mean_teacher'},
    'fedmatch': {'fedmatch.helper_every': 1},
    'feddure': {'data.client_labels': 20, 'federation.mu': 1},
    'feddure, one regulator': {'algorithm': 'feddure', 'feddure.fine': False, **golden.CASES['feddure']},
}
EXTRA['feddure, one regulator'].pop('feddure.fine_rate')
EXTRA['fed_shvr'] = {'fed_shvr.alpha2': 0.0}  # it needs no label
CASES = {name: {} for name, method in algorithms.METHODS.items() if 'pseudo-labels' in method.uses} | EXTRA
for like_another in ('fedprox', 'fed_sh', 'fed_svr', 'fedswitch_sl'):  # in how it labels
    del CASES[like_another]
WITH_ORACLES = {'semisfl, labels at clients', 'fedavg', 'semifl', 'fedmatch'}
FLOORS = 'semisfl', 'feddure', 'fedmatch'  # with losses of their own
ROUNDS = 2
# With C, as no anchor of a guessed class may be drawn to a label.
UNLABELED = (
    'loss_unlabeled',
    'loss_consistency',
    'loss_clustering',
    'loss_agreement',
    'loss_inter_client',
    'coarse_effect',
)


def built(case, **changes):
    settings = {'algorithm': case} | CASES[case] if case in algorithms.METHODS else CASES[case]
    settings = needs.changes(settings['algorithm']) | {'threshold': 0.0, 'k_s': 2} | settings | changes
    config = runs.config(**{key.replace('.', '__'): value for key, value in settings.items()})
    config_lib.check(config)
    return experiment.build(config_lib.resolve(config))


def poisoned(federation):
    """Other true labels of everything that clients hold without labels; those that they know stay."""
    labels, rows = np.array(federation.client_labels), np.asarray(federation.index)
    known = np.arange(rows.shape[1]) < np.asarray(federation.size)[:, None]
    rows = np.unique(rows[known])
    labels[rows] = (labels[rows] + 1 + np.arange(len(rows)) % 9) % 10
    return federation.replace(client_labels=jnp.asarray(labels))


def trained(built, round_, federation):
    """State and metrics after the rounds."""
    state, k_s = built.algorithm.init(built.key), np.int32(built.config.k_s)
    stream = driver.Driver([built._replace(federation=federation)]).inputs(0)
    for federation_of_round, cohort, _ in itertools.islice(stream, ROUNDS):
        state, metrics = round_(built.key, state, federation_of_round, cohort, k_s)
    return jax.device_get((state, metrics))


# Their gradients read the truth of all rows, and a weight takes out those that clients do not know: that is seen in
# numbers alone.
WEIGHTED = [case for case in CASES if case.startswith('feddure') or case == 'fedavg, uda']


def reached_by_truth(trial, monkeypatch):
    """Names of the outputs of a round that depend on the truth of unlabeled images, by a walk over its program.

    Which rows are labeled is an input of its own, too: where a row is chosen by it, the truth that is read is known.
    """
    draw, masks = sampling.client_rows, []

    def drawn(*arguments):
        rows, labeled = draw(*arguments)
        return rows, masks[0] if masks else labeled

    state = jax.eval_shape(trial.algorithm.init, trial.key)
    federation, cohort, _ = next(driver.Driver([trial]).inputs(0))
    labeled = jax.eval_shape(lambda: draw(trial.key, federation, cohort, trial.hparams.batches))[1]

    def round_(truth, labeled, state):
        masks.append(labeled)
        data = federation.replace(client_labels=truth)
        return trial.algorithm.round(trial.key, state, data, cohort, np.int32(2))

    with monkeypatch.context() as patch:
        patch.setattr(sampling, 'client_rows', drawn)
        program, outputs = jax.make_jaxpr(round_, return_shape=True)(federation.client_labels, labeled, state)
    inputs = [flow.SECRET, flow.MASK, *[flow.OPEN] * (len(program.jaxpr.invars) - 2)]
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(outputs)]
    return {path for path, kind in zip(paths, flow.kinds(program.jaxpr, inputs), strict=True) if kind == flow.SECRET}


@pytest.mark.slow
@pytest.mark.parametrize('case', [case for case in CASES if case not in WEIGHTED])
def test_the_truth_of_unlabeled_images_reaches_training_only_as_an_oracle(case, monkeypatch):
    """Whatever the numbers are: with 'true' alone the state after a round depends on it."""
    for source in ('method', 'none', 'true') if case in WITH_ORACLES else ('method',):
        reached = reached_by_truth(built(case, pseudo_labels=source), monkeypatch)
        if source == 'true':
            assert {"[1]['mask_rate']", "[1]['pseudo_label_accuracy']"} <= reached
            assert any(path.startswith('[0]') for path in reached)
        else:
            assert not [path for path in reached if path.startswith('[0]')]
            assert "[1]['pseudo_label_accuracy']" in reached


@pytest.mark.slow
@pytest.mark.parametrize(
    ('case', 'source'),
    [*((case, 'method') for case in WEIGHTED), ('feddure', 'true'), *((case, 'none') for case in FLOORS)],
)
def test_other_truth_of_unlabeled_images_changes_no_bit_but_of_an_oracle(case, source):
    """What 'true' and 'none' make of a rule is tested below."""
    trial = built(case, pseudo_labels=source)
    round_ = jax.jit(trial.algorithm.round)
    state, metrics = trained(trial, round_, trial.federation)
    other, _ = trained(trial, round_, poisoned(trial.federation))
    if source == 'true':
        with pytest.raises(AssertionError):
            chex.assert_trees_all_equal(state, other)
        assert (metrics['mask_rate'], metrics['pseudo_label_accuracy']) == (1, 1)
    else:
        chex.assert_trees_all_equal(state, other)
    if source == 'none':
        assert metrics['mask_rate'] == 0
        assert np.isnan(metrics['pseudo_label_accuracy'])
        assert {metrics[name].item() for name in UNLABELED if name in metrics} == {0.0}


# --- rules


LOGITS = np.array([[2.0, 0.0, -1.0], [0.3, 0.1, 0.2], [-1.0, 4.0, 4.5], [200.0, 0.0, 0.0]], np.float32)
STUDENT = np.array([[0.5, 0.1, 0.0], [1.0, -1.0, 0.0], [0.2, 0.4, 0.6], [0.0, 0.0, 1.0]], np.float32)
TRUTH = np.array([1, 2, 0, 1])
WEIGHT = np.array([1.0, 1.0, 1.0, 0.0], np.float32)
Q = np.exp(STUDENT) / np.exp(STUDENT).sum(axis=1, keepdims=True)
CROSS_ENTROPY = -np.log(Q[np.arange(4), TRUTH])
ONE_HOT = np.eye(3)[TRUTH]
CONFIDENCE = np.log(3) + (Q * np.log(Q)).sum(axis=1)


@pytest.mark.parametrize(
    ('rule', 'true', 'none'),
    [
        ('fixmatch', CROSS_ENTROPY, 0 * CROSS_ENTROPY),
        ('pseudo_label', CROSS_ENTROPY, 0 * CROSS_ENTROPY),
        ('uda', CROSS_ENTROPY, 0 * CROSS_ENTROPY),  # the entropy of a one-hot label is 0
        ('mean_teacher', ((Q - ONE_HOT) ** 2).mean(axis=1), 0 * CROSS_ENTROPY),
        ('sharpened', 0.7 * CROSS_ENTROPY + 0.5 * np.log(3) + 0.2 * CONFIDENCE, 0.2 * CONFIDENCE),
    ],
)
def test_an_oracle_trains_on_the_truth_and_a_floor_on_nothing(rule, true, none):
    """Against the truth, or without any label; whatever the threshold."""
    for threshold, source, rows in ((0.5, 'true', true), (1.0, 'true', true), (0.5, 'none', none)):
        objective = 'fixmatch' if rule == 'sharpened' else rule
        uda = Uda(temperature=0.4)
        options = fed_shvr.FedShvr(alpha0=0.7, alpha1=0.5, alpha2=0.2)
        hparams = HParams(
            threshold=threshold, pseudo_labels=source, local=Local(objective=objective), uda=uda, options=options
        )
        apply = build_rule(hparams) if rule != 'sharpened' else fed_shvr.sharpened_rule(hparams, 1.0)
        told = label_logits(hparams, jnp.asarray(LOGITS), jnp.asarray(TRUTH))
        value, labels, counted = apply(told, jnp.asarray(STUDENT), jnp.asarray(WEIGHT))
        assert value == pytest.approx((rows * WEIGHT).sum() / 3, rel=1e-5)
        assert counted.tolist() == [source == 'true'] * 4
        if source == 'true':
            assert labels.tolist() == TRUTH.tolist()
        slope = jax.grad(lambda student, apply=apply, told=told: apply(told, student, jnp.asarray(WEIGHT))[0])(STUDENT)
        assert np.isfinite(slope).all()
        assert np.abs(slope).sum() > 0 or (source == 'none' and rule != 'sharpened')


def test_no_threshold_lets_none_pass_or_holds_true_labels_back():
    labels, confident = assign_pseudo_labels(HParams(pseudo_labels='none', threshold=0.0), jnp.asarray(LOGITS), TRUTH)
    assert not confident.any()
    assert (labels == 3).all()  # no class
    labels, confident = assign_pseudo_labels(HParams(pseudo_labels='true', threshold=1.0), jnp.asarray(LOGITS), TRUTH)
    assert confident.all()
    assert labels.tolist() == TRUTH.tolist()


# --- what users see


def test_an_oracle_needs_the_truth(monkeypatch):
    true = sources.load

    def partly_unknown(*arguments):
        dataset = true(*arguments)
        return dataclasses.replace(dataset, train_labels=np.where(np.arange(1437) < 900, dataset.train_labels, -1))

    monkeypatch.setattr(data, 'load', partly_unknown)
    with pytest.raises(UserError, match=r"pseudo_labels='true'.* 537 images"):
        built('semisfl', pseudo_labels='true')
    built('semisfl', pseudo_labels='none')


@pytest.mark.parametrize(('source', 'k_s'), [('method', 13), ('none', 20)])
def test_without_pseudo_labels_k_s_stays(source, k_s):
    """Their loss, always 0, falls faster than a supervised one that rises: 20 / 1.5 = 13.3."""
    run = built('semisfl', pseudo_labels=source, k_s=20)  # windows of one round, compared after two
    rounds, controller = driver.Driver([run]), frequency.init(run.frequency)
    for loss in (1.0, 2.0):
        measured = {'loss_supervised': np.float32(loss), 'loss_unlabeled': np.float32(0), 'lr': np.float32(0.02)}
        after = types.SimpleNamespace(round=np.int32(controller.rounds + 1))
        (controller,), _ = rounds.finish(int(controller.rounds), [controller], after, measured, [None])
    assert controller.k_s == k_s


@pytest.mark.slow
def test_every_output_says_oracle(tmp_path, capsys):
    small = {'algorithm': 'fedavg', 'rounds': 1, 'k_s': 1, 'k_u': 1, 'parallel__trials': 'loop'}
    for name, source in (('method', 'method'), ('oracle', 'true'), ('floor', 'none')):
        assert runs.run(tmp_path / name, pseudo_labels=source, **small) == 0
    output = capsys.readouterr().out
    assert 'ORACLE' in output
    assert 'NO PSEUDO-LABELS' in output
    summaries = [json.loads((tmp_path / name / 'summary.json').read_text()) for name in ('method', 'oracle', 'floor')]
    assert [summary.get('pseudo_labels') for summary in summaries] == [None, 'true', 'none']
    found = {name: read_run(tmp_path / name) for name in ('method', 'oracle', 'floor')}
    groups = group(list(found.values()))
    assert [style.group_title(label) for label in groups] == ['FedAvg', 'FedAvg (oracle)', 'FedAvg (no pseudo-labels)']
