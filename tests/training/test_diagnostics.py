"""Diagnostics of runs: they change nothing, come back after a kill, and are what a count by other means gives."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import algorithms
from semisfl_jax import config as config_lib
from semisfl_jax.base.errors import UserError
from semisfl_jax.core import queue, sampling
from semisfl_jax.core.queue import Queue
from semisfl_jax.training import diagnostics, experiment, inputs, load
from tests.helpers import runs, toy

# Without views, weak ones included, pseudo-labels are those of the stored images.
PLAIN = {'augment__operations': 0, 'augment__crop': 0.0, 'augment__cutout': 0, 'threshold': 0.6}


@pytest.fixture(scope='module')
def diagnosed(tmp_path_factory):
    """The same with diagnostics after every round."""
    folder = tmp_path_factory.mktemp('diagnosed') / 'run'
    assert runs.run(folder, diagnostics_every=1) == 0
    return folder


def built(**changes):
    return experiment.build(config_lib.resolve(runs.config(**changes)))


@pytest.mark.slow
def test_diagnostics_change_no_number(reference, diagnosed):
    assert runs.lines(diagnosed) == runs.lines(reference)
    assert not (reference / 'diagnostics').exists()
    trial = built()
    pairs = (jax.tree.leaves(load.state(folder, trial)[1]) for folder in (reference, diagnosed))
    for ours, theirs in zip(*pairs, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_counts_add_up_to_what_is_known_otherwise(diagnosed):
    trial, records = built(), runs.records(diagnosed)
    held, truth = trial.partition.client_index, trial.dataset.train_labels
    for number in (1, 4):
        arrays = diagnostics.load(diagnosed, number)
        assert arrays['round'] == number
        np.testing.assert_array_equal(
            arrays['unlabeled'], [[*np.bincount(truth[rows], minlength=10), 0] for rows in held]
        )
        for model in ('teacher', 'student'):
            share = np.trace(arrays[f'{model}_test']) / 360
            assert share == records[number - 1][f'{model}_accuracy']
            np.testing.assert_array_equal(
                arrays[f'{model}_test'].sum(axis=1), np.bincount(trial.dataset.test_labels, minlength=10)
            )
        np.testing.assert_array_equal(arrays['agreement'].sum(axis=1), arrays['teacher_test'].sum(axis=0))
        np.testing.assert_array_equal(arrays['agreement'].sum(axis=0), arrays['student_test'].sum(axis=0))
        assert arrays['queue_levels'].tolist() == ['supervised', 'unlabeled']
        assert (arrays['queue'].sum(axis=(1, 2, 3)) + arrays['queue_empty']).tolist() == [16, 16]
        cohort, _ = next(inputs.cohorts(trial, number - 1))
        rows, _ = sampling.client_rows(trial.key, trial.federation, cohort, trial.hparams.batches)
        newest = np.asarray(trial.federation.client_labels)[np.swapaxes(rows, 0, 1)].ravel()[-16:]
        np.testing.assert_array_equal(arrays['queue'][1].sum(axis=(0, 2)), [*np.bincount(newest, minlength=10), 0])


def test_a_queue_that_cannot_be_recomputed_is_left_out():
    for changes in ({}, {'client_teacher_ema': True}, {'algorithm': 'semisfl_prior'}, {'pseudo_labels': 'none'}):
        assert (diagnostics._build_queue(built(**changes), toy.VIEWS, jax.jit) is None) == bool(changes)


def test_the_gap_is_that_of_the_checkpoint(diagnosed):
    state, arrays = load.state(diagnosed, built())[1], diagnostics.load(diagnosed, 4)
    assert arrays['pieces'].tolist() == ['bottom', 'top', 'proj']
    for index, piece in enumerate(arrays['pieces']):
        student, teacher = (
            np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(getattr(model, piece)['params'])])
            for model in (state.student, state.teacher)
        )
        assert arrays['norm'][index] == pytest.approx(np.linalg.norm(student), rel=1e-5)
        assert arrays['distance'][index] == pytest.approx(np.linalg.norm(student - teacher), rel=1e-5)
        assert arrays['distance'][index] > 0


@pytest.mark.slow
def test_pseudo_labels_are_those_of_a_loop_over_images():
    """Without views, of a state whose labels are mixed: weights made large, teacher and student apart; on the host."""
    trial = built(**PLAIN, data__residency='host')
    state = trial.algorithm.init(trial.key)
    other = trial.algorithm.init(jax.random.key(7))
    state = state.replace(teacher=jax.tree.map(lambda x: 3 * x, other.student), round=jnp.int32(1), step=jnp.int32(8))
    arrays = diagnostics.build(trial)(trial, state, 1, 8)
    expected = {model: np.zeros((10, 11, 10), int) for model in ('teacher', 'student')}
    for client, rows in enumerate(trial.partition.client_index):
        logits = trial.algorithm.predict(state, trial.dataset.train_images[rows])
        for model, logits_of_model in logits.items():
            logits_of_model = np.asarray(logits_of_model, np.float64)
            share = np.exp(logits_of_model) / np.exp(logits_of_model).sum(axis=1, keepdims=True)
            for row, image in zip(share, rows, strict=True):
                if row.max() >= 0.6:
                    expected[model][client, trial.dataset.train_labels[image], row.argmax()] += 1
    for model, counts in expected.items():
        np.testing.assert_array_equal(arrays[f'{model}_confident'], counts)
    assert 0 < expected['teacher'].sum() < arrays['unlabeled'].sum()


# --- the queue


class Ring:
    """One level of the queue, slot by slot."""

    def __init__(self, size):
        self.slots, self.head = [None] * size, 0

    def push(self, labels, confident, truth):
        for label, sure, true in zip(labels, confident, truth, strict=True):
            old = self.slots[self.head]
            sure = sure if sure is not None else (old[1] if old else False)
            self.slots[self.head] = (int(label), bool(sure), int(true))
            self.head = (self.head + 1) % len(self.slots)


def spied(monkeypatch, pushes):
    """Notes down what enters the queue of a round: (phase, labels, confident, iteration)."""
    push_supervised, push_unlabeled = Queue.push_supervised, Queue.push_unlabeled

    def supervised(queue, batch):
        jax.debug.callback(lambda *x: pushes.append(('S', *x, None)), batch.labels, batch.confident, ordered=True)
        return push_supervised(queue, batch)

    def unlabeled(queue, batch, t):
        def note(labels, confident, mask, t):
            pushes.append(('U', labels[mask], confident[mask], t))

        jax.debug.callback(note, batch.labels, batch.confident, batch.mask, t, ordered=True)
        return push_unlabeled(queue, batch, t)

    monkeypatch.setattr(Queue, 'push_supervised', supervised)
    monkeypatch.setattr(Queue, 'push_unlabeled', unlabeled)


@pytest.mark.slow
@pytest.mark.parametrize(
    ('policy', 'k_s', 'settings'),
    [
        ('two_level', 1, {'queue_size': 60, 'k_u': 4, 'labeled_rows': 1}),
        ('single_ring', 3, {'queue_size': 21, 'k_u': 1, 'client_teacher_bn': 'train', 'sampling': 'replicated'}),
    ],
)
def test_the_replay_finds_what_entered_the_queue(monkeypatch, policy, k_s, settings):
    hparams = dataclasses.replace(toy.HPARAMS, queue=policy, threshold=0.4, **settings)
    federation = toy.federation(labels_at_clients='labeled_rows' in settings)
    cohort, key = toy.cohort([0, 2, 4])._replace(weight=jnp.array([0.0, 1.0, 1.0])), jax.random.key(3)
    model = toy.model(top_norm=True)
    pushes = []
    with monkeypatch.context() as patch:
        spied(patch, pushes)
        algorithm = algorithms.build('semisfl', model, toy.VIEWS, hparams)
        state, _ = jax.jit(algorithm.round)(key, algorithm.init(key), federation, cohort, jnp.int32(k_s))
        jax.block_until_ready(state)
        jax.effects_barrier()
    levels = jax.jit(diagnostics.build_replay(model, toy.VIEWS, hparams))(
        key, state, federation, cohort, jnp.int32(k_s)
    )

    supervised = Ring(hparams.queue_size)
    unlabeled = Ring(hparams.queue_size) if policy == 'two_level' else supervised
    for phase, labels, confident, t in pushes:
        if phase == 'S':
            flags = confident if policy == 'two_level' else [None] * len(labels)
            supervised.push(labels, flags, labels)
        else:
            unlabeled.push(labels, confident, labels)
            if policy == 'two_level' and (t + 1) % hparams.queue_stride == 0:
                supervised.push(labels, confident, labels)
    assert {phase for phase, *_ in pushes} == {'S', 'U'}
    expected = [supervised, unlabeled] if policy == 'two_level' else [supervised]
    assert len(levels) == len(expected) == len(queue.LEVELS[policy])
    for level, ring in zip(levels, expected, strict=True):
        slots = sorted((int(x), bool(y)) for x, y in zip(level.labels, level.confident, strict=True) if x >= 0)
        assert slots == sorted(slot[:2] for slot in ring.slots if slot)
    assert {slot[1] for slot in expected[-1].slots if slot} == {True, False}, 'the case should have both'


@pytest.mark.slow
@pytest.mark.parametrize(
    ('policy', 'size', 'expected'),
    [
        ('two_level', 9, [[5, 0], [9, 9], [9, 9]]),  # five labeled images a step; 3 x 8 rows of clients in 9 slots
        ('single_ring', 60, [[15], [20 + 24], [5 + 24]]),  # emptied for the first time after the fourth round
    ],
)
def test_before_the_clients_take_part_the_server_alone_fills_the_queue(policy, size, expected):
    hparams = dataclasses.replace(toy.HPARAMS, pre_rounds=3, queue=policy, queue_size=size)
    federation, key = toy.federation(), jax.random.key(3)
    state = algorithms.build('semisfl', toy.model(), toy.VIEWS, hparams).init(key)
    run = jax.jit(diagnostics.build_replay(toy.model(), toy.VIEWS, hparams))
    inputs = federation, toy.cohort([2, 4]), jnp.int32(1)
    filled = []
    for number in (3, 4, 5):  # the last round of the server alone, and two with clients; one step in each
        levels = run(key, state.replace(round=jnp.int32(number), step=jnp.int32(number)), *inputs)
        filled.append([int((level.labels >= 0).sum()) for level in levels])
    assert filled == expected


# --- tables


def test_labels_are_counted_by_group_truth_and_label():
    counts = diagnostics.count_labels(
        groups=np.array([0, 0, 0, 1, 1, 1]),
        truth=np.array([0, 0, 1, 1, -1, 1]),
        labels=np.array([0, 1, 1, 0, 1, 0]),
        counted=np.array([True, True, True, True, True, False]),
        size=2,
        classes=2,
    )
    assert counts.tolist() == [[[1, 1], [0, 1], [0, 0]], [[0, 0], [1, 0], [0, 1]]]  # the last row: truth unknown


def test_slots_are_counted_by_label_and_truth():
    counts, empty = diagnostics.count_slots(
        labels=np.array([1, -1, 0, 1, -1]),
        confident=np.array([True, True, False, False, False]),
        truth=np.array([1, 0, 1, -1, 0]),
        classes=2,
    )
    assert empty == 2
    assert counts.tolist() == [[[0, 0], [1, 0], [0, 1]], [[0, 0], [0, 1], [0, 0]]]


# Two clients, two classes and images of unknown class. Client 0: 4 images of class 0, of which 2 are labeled 0 and
# 1 is labeled 1; client 1: 3 of class 1, of which 1 is labeled 1, and 5 unknown, of which 4 are labeled 0.
CONFIDENT = np.array([[[2, 1], [0, 0], [0, 0]], [[0, 0], [0, 1], [4, 0]]])
UNLABELED = np.array([[4, 0, 0], [0, 3, 5]])


def test_rates_by_class_and_by_client():
    by_class = diagnostics.class_rates(CONFIDENT, UNLABELED)
    np.testing.assert_allclose(by_class.mask, [3 / 4, 1 / 3])
    np.testing.assert_allclose(by_class.accuracy, [2 / 3, 1])
    by_client = diagnostics.client_rates(CONFIDENT, UNLABELED)
    np.testing.assert_allclose(by_client.mask, [3 / 4, 5 / 8])
    np.testing.assert_allclose(by_client.accuracy, [2 / 3, 1])


def test_files_come_back_and_are_cut_back(tmp_path):
    for number in (5, 10, 15):
        diagnostics.save(tmp_path, number, {'round': np.int32(number), 'pieces': np.array(['bottom', 'top'])})
    assert sorted(path.name for path in (tmp_path / 'diagnostics').iterdir())[0] == 'round_000005.npz'
    assert diagnostics.load(str(tmp_path), 10)['round'] == 10  # a path as a string, too
    assert diagnostics.load(tmp_path, 10)['pieces'].tolist() == ['bottom', 'top']
    diagnostics.cut_back(tmp_path, 10)
    assert diagnostics.rounds_written(tmp_path) == [5, 10]
    assert diagnostics.rounds_written(tmp_path / 'nowhere') == []


def test_missing_and_damaged_files_are_named(tmp_path):
    diagnostics.save(tmp_path, 3, {'round': np.int32(3)})
    (tmp_path / 'diagnostics' / 'round_000003.npz').write_bytes(b'PK')
    with pytest.raises(UserError, match=r'round_000003\.npz'):
        diagnostics.load(tmp_path, 3)
