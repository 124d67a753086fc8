"""FedSwitch-SL: what it is reduced to, and the choice of who labels, against clients that pass messages."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import default
from semisfl_jax import algorithms
from semisfl_jax import config as config_lib
from semisfl_jax.algorithms.fedswitch import FedSwitch
from semisfl_jax.core import rng
from semisfl_jax.core.errors import UserError
from tests import runs, toy, twin
from tests.marks import slow_but
from tests.rows import STUDENT, TEACHER, Row
from tests.trees import assert_trees_close

ROW = Row(f'{STUDENT} {TEACHER}', STUDENT)

ROUNDS = (([0, 2, 4], [0, 0, 0], 3), ([1, 2, 4], [0, 1, 1], 2))  # cohort, its visits, K_s
KEY = rng.root(10)  # of a first model whose labels are of several classes
HPARAMS = dataclasses.replace(toy.HPARAMS, threshold=0.5, clustering_weight=0.0, contrastive_weight=0.0, queue='off')


def options(mode='switch', beta_iid=0.5, **changes):
    """The settings of `HPARAMS` with some changed."""
    return dataclasses.replace(HPARAMS, options=FedSwitch(mode, beta_iid), **changes)


def start(name, hparams, **model_options):
    """A louder top, so that some pseudo-labels reach the threshold and some do not."""
    algorithm = algorithms.build(name, toy.model(**model_options), toy.VIEWS, hparams)
    state = algorithm.init(KEY)
    student = state.student._replace(top=jax.tree.map(lambda w: 5.0 * w, state.student.top))
    return algorithm, state.replace(student=student, teacher=student)


@functools.cache
def two_rounds(name, labels_at_clients=False, split_index=None, **changes):
    """[(state, metrics)] after each round."""
    algorithm, state = start(name, options(**changes), split_index=split_index)
    run, results = jax.jit(algorithm.round), []
    for ids, visits, k_s in ROUNDS:
        federation = toy.federation(labels_at_clients=labels_at_clients)
        state, metrics = run(KEY, state, federation, toy.cohort(ids, visits), jnp.int32(k_s))
        results.append((state, metrics))
    return results


@pytest.mark.parametrize(
    'changes',
    slow_but(
        [
            {},
            {'client_teacher_ema': True, 'client_teacher_bn': 'train', 'labels_at_clients': True, 'labeled_rows': 1},
            {'split_index': 3, 'pre_rounds': 1, 'consistency_weight': 0.5},
        ]
    ),
)
def test_with_the_teacher_it_is_semisfl_without_clustering(changes):
    """The same bottoms, tops and teachers over two rounds, up to how XLA rounds two different programs."""
    reduced = two_rounds('fedswitch_sl', mode='teacher', **changes)
    semisfl_rounds = two_rounds('semisfl', **changes)
    for (state, metrics), (other, others) in zip(reduced, semisfl_rounds, strict=True):
        for who in ('student', 'teacher'):
            for piece in ('bottom', 'top'):
                ours, theirs = (getattr(getattr(s, who), piece) for s in (state, other))
                assert_trees_close(ours, theirs, rtol=1e-5, atol=1e-6)
            assert jax.tree.leaves(getattr(state, who).proj) == []
        for name in ('loss_consistency', 'loss_supervised_ce', 'mask_rate', 'pseudo_label_accuracy'):
            np.testing.assert_allclose(metrics[name], others[name], rtol=1e-5, err_msg=name)
        assert 'loss_clustering' not in metrics
    assert state.queue == ()
    assert 'student_labels' not in metrics


class Client(twin.Client):
    """Sends features of the weak view by its own student when the server says so."""

    def forward(self, images, key, t):
        features, weak_features = super().forward(images, key, t)
        s = self.server
        if not s.asks_teacher(self.id):
            images = s.views.normalize(s.views.weak(rng.fold(key, 'weak', self.id, t), images))
            weak_features, _ = s.model.bottom(self.bottom, images, None, s.h.client_teacher_bn == 'train')
        return features, weak_features


class Server(twin.Server):
    """Counts the confident pseudo-labels of each client, and asks teacher or student."""

    client = Client

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.asked = []

    def asks_teacher(self, client):
        if self.h.options.mode != 'switch':
            return self.h.options.mode == 'teacher'
        seen = self.seen[client]
        if not seen:
            return self.h.options.beta_iid < np.log(toy.CLASSES)
        share = np.bincount(seen, minlength=toy.CLASSES) / len(seen)
        return np.log(toy.CLASSES) + sum(h * np.log(h) for h in share if h) > self.h.options.beta_iid

    def cross_entity_phase(self, federation, ids, visits):
        self.ids, self.seen = ids, {i: [] for i in ids}
        return super().cross_entity_phase(federation, ids, visits)

    def label(self, features, truth, labeled):
        entries, b = [], self.h.batch_size
        for n, i in enumerate(self.ids):
            rows = slice(n * b, (n + 1) * b)
            teacher, asks = self.teacher, self.asks_teacher(i)
            self.asked.append(asks)
            if not asks:
                self.teacher = self.teacher._replace(top=self.student.top)
            client_entries = super().label(features[rows], truth[rows], labeled[rows])
            self.teacher = teacher
            self.seen[i] += [
                label
                for (_, label, sure), is_labeled in zip(client_entries, labeled[rows], strict=True)
                if sure > is_labeled
            ]
            entries += client_entries
        return entries


@pytest.mark.parametrize(
    'changes',
    slow_but(
        [
            {'mode': 'student'},
            {'mode': 'student', 'client_teacher_bn': 'train', 'split_index': 1},
            {'mode': 'switch', 'beta_iid': 0.6},
            {'mode': 'switch', 'beta_iid': 0.6, 'client_teacher_ema': True, 'labels_at_clients': True}
            | {'labeled_rows': 1},
        ]
    ),
)
def test_who_labels_against_the_explicit_twin(changes):
    results = two_rounds('fedswitch_sl', **changes)
    model = {'split_index': changes.get('split_index')}
    at_clients = changes.get('labels_at_clients', False)
    hparams = {key: value for key, value in changes.items() if key not in ('labels_at_clients', 'split_index')}
    hparams = options(**hparams)
    student = start('semisfl', hparams, **model)[1].student
    server = Server(KEY, toy.model(**model), toy.VIEWS, hparams, student)
    for (state, metrics), (ids, visits, k_s) in zip(results, ROUNDS, strict=True):
        server.asked = []
        expected = server.run_round(toy.federation(labels_at_clients=at_clients), ids, visits, k_s)
        np.testing.assert_allclose(metrics['loss_consistency'], expected['loss_consistency'], rtol=2e-4, atol=1e-6)
        assert expected['loss_consistency'] > 0
        for who in ('student', 'teacher'):
            for piece in ('bottom', 'top'):
                ours, theirs = (getattr(getattr(s, who), piece) for s in (state, server))
                assert_trees_close(ours, theirs, rtol=2e-3, atol=2e-5)
        if hparams.options.mode == 'switch':
            np.testing.assert_allclose(metrics['student_labels'], 1 - np.mean(server.asked), rtol=1e-6)
    if hparams.options.mode == 'switch':
        assert 0 < sum(float(metrics['student_labels']) for _, metrics in results) < 2  # both were asked


@pytest.mark.slow
@pytest.mark.parametrize(('beta', 'mode', 'share'), [(0.0, 'teacher', 0.0), (1.2, 'student', 1.0)])
def test_a_threshold_out_of_reach_is_always_the_same(beta, mode, share):
    """log 3 = 1.10 is the highest skew; the lowest, 0, is that of even counts alone."""
    switched = two_rounds('fedswitch_sl', beta_iid=beta)
    fixed = two_rounds('fedswitch_sl', mode=mode)
    for (state, metrics), (other, _) in zip(switched, fixed, strict=True):
        assert metrics['student_labels'] == share
        assert_trees_close(state.student, other.student, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_modes_differ():
    a, b, c = (
        np.concatenate([np.ravel(x) for x in jax.tree.leaves(two_rounds('fedswitch_sl', **changes)[-1][0].student)])
        for changes in ({'mode': 'teacher'}, {'mode': 'student'}, {'beta_iid': 0.6})
    )
    for one, other in ((a, b), (a, c), (b, c)):
        assert np.max(np.abs(one - other)) > 1e-6


@pytest.mark.slow
def test_another_order_of_the_cohort_and_padding_change_nothing():
    algorithm, state = start('fedswitch_sl', options(beta_iid=0.6))
    run = jax.jit(algorithm.round)
    results = []
    for ids, weight in (([0, 2, 4], [1, 1, 1]), ([4, 0, 2], [1, 1, 1]), ([0, 1, 2, 4], [1, 0, 1, 1])):
        cohort = toy.cohort(ids)._replace(weight=jnp.asarray(weight, jnp.float32))
        results.append(run(KEY, state, toy.federation(), cohort, jnp.int32(2)))
    for other, metrics in results[1:]:
        assert_trees_close(results[0][0].student, other.student, rtol=1e-4, atol=1e-6)
        for name, value in metrics.items():
            np.testing.assert_allclose(value, results[0][1][name], rtol=1e-4, err_msg=name)


@pytest.mark.slow
def test_k_s_stays(tmp_path):
    """The same run of SemiSFL lowers it."""
    assert runs.run(tmp_path / 'a', algorithm='fedswitch_sl') == 0
    assert {record['k_s'] for record in runs.records(tmp_path / 'a')} == {runs.TINY['k_s']}
    record = runs.records(tmp_path / 'a')[-1]
    assert 0 <= record['student_labels'] <= 1
    assert record['teacher_accuracy'] > 0
    assert record['loss_clustering'] is None
    assert config_lib.resolve(runs.config(algorithm='fedswitch_sl')).k_s_rule == 'fixed'
    assert config_lib.resolve(runs.config()).k_s_rule == 'paper'


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'client_teacher_ema': True}, "fedswitch.mode='student' has no teacher"),
        ({'setting': 'official'}, 'fedswitch_sl has no such setting, because it is SemiSFL without clustering'),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(changes, message):
    config = default.get_config()
    config.algorithm, config.fedswitch.mode = 'fedswitch_sl', 'student'
    config_lib.check(config)
    config.update_from_flattened_dict(changes)
    with pytest.raises(UserError) as error:
        config_lib.check(config)
    assert message in str(error.value)
    assert '\n' not in str(error.value)
