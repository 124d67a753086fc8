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
from semisfl_jax.core import frequency
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.hparams import HParams, Local, Uda
from semisfl_jax.core.objectives import build_rule
from semisfl_jax.core.teacher import assign_pseudo_labels, label_logits
from semisfl_jax.data import sources
from semisfl_jax.plots import style
from semisfl_jax.runs import group, read
from semisfl_jax.training import driver, experiment, inputs
from tests import golden, needs, runs

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
WITH_ORACLES = {'semisfl', 'semisfl, labels at clients', 'fedavg', 'semifl', 'feddure', 'fedmatch'}
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
    for federation_of_round, cohort, _ in itertools.islice(
        inputs.inputs(built._replace(federation=federation), 0), ROUNDS
    ):
        state, metrics = round_(built.key, state, federation_of_round, cohort, k_s)
    return jax.device_get((state, metrics))


@pytest.mark.slow
@pytest.mark.parametrize('case', CASES)
def test_the_truth_of_unlabeled_images_reaches_training_only_as_an_oracle(case):
    """Bit for bit: with other true labels, the state after the rounds is the same, and with 'true' another. What
    'true' and 'none' make of a rule is tested below, here in a method of each kind."""
    states = {}
    for source in ('method', 'true', 'none') if case in WITH_ORACLES else ('method',):
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
            if case != 'semisfl, labels at clients':  # whose losses are of the labeled images as well
                assert {metrics[name].item() for name in UNLABELED if name in metrics} == {0.0}
        states[source] = state.student
    for source in states.keys() - {'method'}:
        with pytest.raises(AssertionError):
            chex.assert_trees_all_equal(states['method'], states[source])


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
def test_the_losses_of_rules(rule, true, none):
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

    def partly_unknown(options):
        dataset = true(options)
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
    found = {name: read(tmp_path / name) for name in ('method', 'oracle', 'floor')}
    groups = group(list(found.values()))
    assert [style.group_title(label) for label in groups] == ['FedAvg', 'FedAvg (oracle)', 'FedAvg (no pseudo-labels)']
