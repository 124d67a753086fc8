"""Clients that fail: they have no part in the round, whatever they hold, and nobody depends on their coming."""

import dataclasses
import hashlib
import json

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import algorithms, costs, data
from semisfl_jax import config as config_lib
from semisfl_jax.algorithms.semifl import SemiFL
from semisfl_jax.base.errors import UserError
from semisfl_jax.config import failures
from semisfl_jax.core import rng
from semisfl_jax.core.hparams import Local
from semisfl_jax.core.state import trainable
from semisfl_jax.costs.rounds import no_failures
from semisfl_jax.training import experiment as experiment_lib
from semisfl_jax.training import inputs, load, loop
from tests.helpers import linear, runs, toy
from tests.helpers.marks import slow_but

# Of images, but for those that differ from another in a term of the loss
WITH_CLIENTS = {name for name, method in algorithms.METHODS.items() if method.clients and not method.dense}
WITH_CLIENTS -= {'fedprox', 'fed_sh', 'fed_svr'}
KEPT = {'local': Local(optimizer_state='kept')}  # so that clients have something to keep


def hparams(name):
    changes = KEPT if algorithms.get(name).whole_model else {}
    if name == 'splitfed':
        changes = {'labeled_rows': toy.HPARAMS.batch_size, 'server_trains': False}
    if name == 'semifl':  # whose statistics are otherwise those of all clients, active or not
        changes = KEPT | {'options': SemiFL(batch_norm_data='server')}
    return dataclasses.replace(toy.HPARAMS, threshold=0.5, **changes)


def images_of(federation, client, value):
    """The federation with other images at one client."""
    rows = federation.index[client, : int(federation.size[client])]
    rows = jnp.concatenate([rows, federation.labeled_index[client, : int(federation.labeled_size[client])]])
    return federation.replace(
        client_images=federation.client_images.at[rows].set(value),
        client_labels=federation.client_labels.at[rows].set(0),
    )


# --- methods


@pytest.mark.slow
@pytest.mark.parametrize('name', sorted(WITH_CLIENTS))
def test_a_failed_client_is_as_if_it_had_not_been_drawn(name):
    """Whatever images it holds; and without a survivor clients keep what they had."""
    algorithm, key = algorithms.build(name, linear.model(), toy.VIEWS, hparams(name)), rng.root(0)
    state = algorithm.init(key)
    run, federation = jax.jit(algorithm.round), toy.federation(labels_at_clients=True)
    lost = toy.cohort([2, 3, 4])._replace(weight=jnp.array([1.0, 0.0, 1.0]))
    with_it = run(key, state, federation, lost, jnp.int32(2))
    chex.assert_trees_all_equal(with_it, run(key, state, images_of(federation, 3, 255), lost, jnp.int32(2)))
    chex.assert_trees_all_close(
        with_it, run(key, state, federation, toy.cohort([2, 4]), jnp.int32(2)), rtol=1e-3, atol=1e-5
    )
    nobody = [toy.cohort(ids)._replace(weight=jnp.zeros(3)) for ids in ([2, 3, 4], [0, 1, 4])]
    after, same = (run(key, state, federation, cohort, jnp.int32(2))[0] for cohort in nobody)
    chex.assert_trees_all_equal(after, same)
    chex.assert_trees_all_equal(after.clients, state.clients)
    assert int(after.round) == 1
    # The model is what the server made of it: something in two steps, nothing in none
    idle, _ = run(key, state, federation, nobody[0], jnp.int32(0))
    for who in filter(state.__getattribute__, ('student', 'teacher')):
        old, trained, kept = (trainable(getattr(of, who)) for of in (state, after, idle))
        chex.assert_trees_all_close(kept, old, rtol=1e-6)
        moved = jax.tree.map(lambda new, old: float(jnp.max(jnp.abs(new - old))), trained, old)
        assert (max(jax.tree.leaves(moved)) > 1e-4) == (name != 'splitfed'), who


@pytest.mark.slow
def test_a_run_goes_on_with_its_own_trace_only(tmp_path, capsys):
    """Another content of the same file is another experiment, also within a process and for a run that is done."""
    path, folder = tmp_path / 'trace.csv', tmp_path / 'run'
    path.write_text('round,client,done\n1,0,0\n')
    assert runs.run(folder, failures__trace=path, rounds=1, algorithm='fedswitch_sl') == 0
    hash_ = hashlib.sha256(path.read_bytes()).hexdigest()
    assert json.loads((folder / 'config.json').read_text())['failures']['trace_hash'] == hash_
    lines = runs.lines(folder)
    path.write_text('round,client,done\n1,0,0\n1,1,0\n1,2,0\n')
    capsys.readouterr()
    for rounds in (1, 2):
        assert runs.run(folder, failures__trace=path, rounds=rounds, algorithm='fedswitch_sl') == 2
        assert f'failures.trace_hash: {hash_} ->' in capsys.readouterr().err
    assert runs.lines(folder) == lines
    load.experiment(folder)  # to look at what it saved takes no trace
    with pytest.raises(UserError, match='trace'):
        config_lib.check(runs.config(failures__trace=str(path), failures__trace_hash=hash_))


# --- who fails


def model(**changes):
    config = config_lib.resolve(runs.config(federation__num_clients=50, federation__num_active=50, **changes))
    return config, costs.build(config, algorithms.get(config.algorithm), 10, (8, 8, 1), config_lib.hparams(config))


def everybody(ids, steps=10):
    return no_failures(ids, np.full(ids.shape, 9), np.full(ids.shape, steps), np.zeros(ids.shape, bool))


def test_failures_are_as_frequent_as_asked_and_drawn_by_round_and_client():
    config, built = model(failures__before=0.2, failures__inside=0.3)
    ids = np.arange(50)
    rounds = [failures.apply_failures(config.failures, built, index, everybody(ids)) for index in range(200)]
    never = np.mean([clients.failed & ~clients.started for clients in rounds])
    inside = np.mean([clients.failed & clients.started for clients in rounds])
    assert never == pytest.approx(0.2, abs=0.02)
    assert inside == pytest.approx(0.3, abs=0.02)
    made = np.concatenate([clients.completed[clients.failed & clients.started] for clients in rounds])
    assert set(made) == set(range(10))  # of ten iterations any number but all
    assert all(np.all(clients.completed[~clients.failed] == 10) for clients in rounds)
    assert not any(clients.late.any() for clients in rounds)
    some = failures.apply_failures(config.failures, built, 7, everybody(np.array([3, 30, 31])))
    for name in ('started', 'completed', 'failed'):
        np.testing.assert_array_equal(getattr(some, name), getattr(rounds[7], name)[[3, 30, 31]])
    _, other = model(failures__before=0.2, failures__inside=0.3, seed=1)
    assert np.any(failures.apply_failures(config.failures, other, 7, everybody(ids)).failed != rounds[7].failed)


def test_a_trace_says_who_fails_when_and_how_far(tmp_path):
    path = tmp_path / 'trace.csv'
    path.write_text('round,client,done\n2,7,0\n2,9,0.55\n3,9,0.0\n\n')
    config, built = model(failures__trace=str(path))
    config_lib.check(config)
    ids = np.array([7, 8, 9])
    first, second, third = (
        failures.apply_failures(config.failures, built, index, everybody(ids)) for index in range(3)
    )
    assert not first.failed.any()
    assert list(second.failed) == [True, False, True]
    assert list(second.started) == [False, True, True]
    assert list(second.completed) == [0, 10, 5]
    assert list(third.started) == [True, True, False]


@pytest.mark.parametrize(
    ('text', 'named'),
    [
        ('round,client\n1,2\n', 'round,client,done'),
        ('round,client,done\n1,2\n', 'failures.trace=.*, line 1,2:'),
        ('round,client,done\n1,2,0.5\n1,x,0\n', 'line 1,x,0'),
        ('round,client,done\n0,2,0.5\n', 'line 0,2,0.5'),
        ('round,client,done\n1,2,1.0\n', 'done'),
        ('round,client,done\n1,2,nan\n', 'done'),
        ('round,client,done\n1,2,0.5\n1,2,0.6\n', 'line 1,2,0.6'),
        ('\ufeffround,client,done\n3,10,0.5\n', 'client 10 in round 3'),  # as a spreadsheet saves it
    ],
)
def test_a_mistake_in_a_trace_is_named(tmp_path, text, named):
    path = tmp_path / 'trace.csv'
    path.write_text(text)
    with pytest.raises(UserError, match=named):
        config_lib.check(runs.config(failures__trace=str(path)))


def test_batch_statistics_at_the_server_would_count_the_lost():
    changes = {'model__name': 'vgg13', 'model__split_index': 2, 'data__name': 'cifar10', 'data__fake': True}
    config = runs.config(data__fake_size=200, failures__before=0.5, **changes)
    with pytest.raises(UserError, match='split_index'):
        experiment_lib.build(config_lib.resolve(config))


# --- deadlines


def test_who_is_late_is_left_behind():
    _, built = model()
    clients = everybody(np.arange(50))
    paces = costs.rounds._paces(built, 3, clients, built.client_cost(costs.rounds._context(built, 3, None, None)))
    seconds = paces.start + 10 * paces.step + paces.end
    deadline = float(np.median(seconds))
    built = dataclasses.replace(built, deadline=deadline)
    after = costs.drop_late(built, 3, clients)
    np.testing.assert_array_equal(after.late, seconds > deadline)
    np.testing.assert_array_equal(after.failed, after.late)
    assert after.started.all()
    for n in np.flatnonzero(after.late):
        made = after.completed[n]
        assert paces.start[n] + made * paces.step[n] <= deadline or made == 0
        assert made == 10 or paces.start[n] + (made + 1) * paces.step[n] > deadline
    # Who has failed before the deadline is not late.
    lost = costs.drop(clients, np.where(np.arange(50) < 25, 0, np.inf), never=True)
    assert not costs.drop_late(built, 3, lost).late[:25].any()


def test_a_round_on_whole_models_ends_at_the_deadline():
    """Before the last download, too."""
    _, built = model(algorithm='fedavg')
    clients = everybody(np.arange(50))
    whole_round = costs.price_round(built, 0, 0, clients)
    paces = costs.rounds._paces(built, 0, clients, built.client_cost(costs.rounds._context(built, 0, None, None)))
    for deadline in (0.5 * whole_round.simulated_seconds, float(np.median(paces.start))):
        built = dataclasses.replace(built, deadline=deadline)
        after = costs.drop_late(built, 0, clients)
        bill = costs.price_round(built, 0, 0, after)
        assert bill.simulated_seconds == pytest.approx(built.deadline, rel=1e-12)
        assert bill.bytes_up == int(np.sum(after.survived)) * built.pieces.whole_bytes
        assert (0 < after.late.sum() < 50) == (deadline > np.median(paces.start))
    assert (paces.start > built.deadline).sum() == 25


@pytest.mark.parametrize(('order', 'seconds'), [('synchronized', 50 + 10), ('sequential', 50 + 10 + 3)])
def test_split_methods_wait_for_a_late_client_until_the_deadline(order, seconds):
    """Of steps of 60 s one client makes none in 50 s. The others make ten of 1 s and ten of 0.3 s, at once or in turn;
    for one that failed otherwise nobody waits."""
    steps = np.array([10, 10, 10, 10])
    clients = costs.drop(no_failures(np.arange(4), steps, steps, steps > 0), np.array([0, np.inf, np.inf, 0]))
    paces = costs.rounds.Paces(np.zeros(4), np.array([60, 1, 0.3, 9]), np.zeros(4))
    tail = np.array([50.0, 0, 0, 0])
    assert costs.rounds._client_seconds(order, clients, paces, tail, 0.0) == pytest.approx(seconds)


# --- what the rounds get


def test_a_round_that_lost_all_has_the_metrics_of_the_server():
    metrics = {'loss_supervised': np.float32(1), 'mask_rate': np.float32(0.5)}
    nobody, one = (no_failures(np.arange(2), np.array([n, 0]), np.array([3, 3]), np.array([0, 0])) for n in (0, 9))
    assert one.started.tolist() == [True, False]
    for clients in (None, one):
        assert failures.mask_lost_rounds(metrics, clients) == metrics
    for clients in (nobody, costs.drop(one, np.array([1, np.inf]))):
        lost = failures.mask_lost_rounds(metrics, clients)
        assert lost['loss_supervised'] == 1
        assert np.isnan(lost['mask_rate'])


def test_the_failed_have_no_weight_and_read_on_where_they_stopped():
    config = config_lib.resolve(runs.config(failures__before=0.4, failures__inside=0.2))
    built = experiment_lib.build(config)
    visits, seen = np.zeros(10, int), 0
    stream = inputs.cohorts(built, 0)
    for index, (cohort, participants) in zip(range(8), stream, strict=False):
        np.testing.assert_array_equal(cohort.ids, data.draw_cohort(0, index, 10, 3))
        np.testing.assert_array_equal(cohort.weight, ~participants.failed)
        np.testing.assert_array_equal(cohort.participations, visits[participants.ids])
        visits[participants.ids[participants.started]] += 1
        seen += int(participants.failed.sum())
        count = inputs.images_per_round(built, participants, 5)
        assert count == 5 * 4 + int(np.sum(~participants.failed)) * 2 * 4
    assert seen
    later, _ = next(inputs.cohorts(built, 8))
    expected = visits[data.draw_cohort(0, 8, 10, 3)]
    np.testing.assert_array_equal(later.participations, expected)


NOBODY = {
    'before=1.0': {'failures__before': 1.0},
    'inside=1.0': {'failures__inside': 1.0},
    'deadline_seconds=1e-05': {'failures__deadline_seconds': 1e-5},
    'trace=': {},
    '30 of 50 clients never train': {
        'algorithm': 'fedavg',
        'local__objective': 'supervised',
        'k_s': 0,
        'data__num_labeled': 20,  # at most one for a client
        'data__client_labels': 20,
        'federation__num_clients': 50,
    },
    'pre_rounds=4': {'pre_rounds': 4},
}


@pytest.mark.parametrize('said', slow_but(NOBODY, *(said for said in NOBODY if 'deadline' not in said)))
def test_clients_that_are_certain_never_to_train_are_told_before_it(said, tmp_path, caplog, monkeypatch):
    """Also to a program. With a client in the last of four rounds it is not certain."""
    changes = NOBODY[said]
    if said == 'trace=':
        lost = [f'{number},{client},0' for number in range(1, 5) for client in range(10)]
        (tmp_path / 'trace.csv').write_text('\n'.join(['round,client,done', *lost]))
        changes = {'failures__trace': str(tmp_path / 'trace.csv')}
    monkeypatch.setattr(loop, '_train', lambda *_: [None])
    config = runs.config(**changes)
    loop.train(config)
    (message,) = caplog.messages
    assert said in message
    caplog.clear()
    if config.failures.before or config.failures.trace:
        config.failures.before *= 0.5
        if config.failures.trace:
            (tmp_path / 'trace.csv').write_text('\n'.join(['round,client,done', *lost[:-1]]))
        config.rounds = 200
        loop.train(config)
        assert caplog.messages == []


def test_rounds_that_lost_all_clients_are_counted_at_the_end():
    """But for server-only rounds; over all trials."""
    lines = [[{'clients': clients} for clients in of_trial] for of_trial in ([0, 2, 0, 0], [0, 1, 3, 0])]
    (message,) = inputs.warnings_after(1, lines)
    assert 'no client took part in 3 of 6 rounds' in message
    assert not [*inputs.warnings_after(1, [[{'clients': 0}] * 3])]  # said before
    assert not [*inputs.warnings_after(0, [[{'clients': 1}] * 3, [{'loss_unlabeled': 0.1}]])]


# --- runs


@pytest.fixture(scope='module')
def trace(tmp_path_factory):
    """Round 2 loses everybody, half of them inside; round 3 one of ten clients."""
    lost = [f'2,{client},{0.5 * (client % 2)}' for client in range(10)]
    active = data.draw_cohort(0, 2, 10, 3)[0]
    path = tmp_path_factory.mktemp('trace') / 'trace.csv'
    path.write_text('\n'.join(['round,client,done', *lost, f'3,{active},0.5']) + '\n')
    return path


@pytest.mark.slow
def test_a_run_survives_a_round_without_survivors(trace, tmp_path, capsys):
    assert runs.run(tmp_path / 'run', failures__trace=trace) == 0
    assert 'warning: no client took part in 1 of 4 rounds' in capsys.readouterr().err
    records = runs.records(tmp_path / 'run')
    assert [(record['clients'], record['clients_failed']) for record in records] == [(3, 0), (0, 3), (2, 1), (3, 0)]
    for name in ('loss_unlabeled', 'loss_consistency', 'loss_clustering', 'mask_rate'):
        assert [record[name] is None for record in records] == [False, True, False, False]
    assert all(record['loss_supervised'] > 0 for record in records)
    bottom, features = 19_200, 4 * 4 * 128
    started = int(
        np.sum(data.draw_cohort(0, 1, 10, 3) % 2)
    )  # odd clients got the bottoms and made one of two iterations
    up = [3 * (bottom + 4 * features), started * 2 * features, 2 * (bottom + 4 * features) + 2 * features]
    down = [3 * (2 * bottom + 2 * features), started * (2 * bottom + features), 6 * bottom + 5 * features]
    assert [record['bytes_up'] for record in records[:3]] == list(np.cumsum(up))
    assert [record['bytes_down'] for record in records[:3]] == list(np.cumsum(down))


def test_a_trace_that_is_none_ends_in_one_short_line(tmp_path):
    trace = tmp_path / 'trace.csv'
    for content in ('', 'round,client,done\n1,' + '7' * 10_000 + ',0\n', '"' + 'x' * 200_000):
        trace.write_text(content)
        with pytest.raises(UserError, match=r'^config\.failures\.trace') as error:
            failures.read_trace(str(trace), failures.hash_trace(str(trace)))
        assert len(str(error.value)) < 600
