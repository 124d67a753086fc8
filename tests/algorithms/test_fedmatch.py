"""FedMatch: rounds against NumPy, and what they are made of."""

import dataclasses
import functools
import math
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import algorithms, core, costs
from semisfl_jax.algorithms import fedmatch
from semisfl_jax.algorithms.fedmatch import FedMatch
from semisfl_jax.core import rng
from semisfl_jax.core.hparams import Local
from semisfl_jax.core.state import trainable, with_parameters
from semisfl_jax.core.types import Cohort
from tests.helpers import draws, linear, runs, toy
from tests.helpers.linear import Sgd, factor
from tests.helpers.linear_local import softmax
from tests.helpers.marks import slow_but
from tests.helpers.prices import RESNET9, STATISTICS, everybody, model_of, price, small
from tests.helpers.rows import STUDENT, Row

ROWS = {'fedmatch': Row(f'{STUDENT} server clients', 'student.statistics server clients')}

KEY = rng.root(0)
FEDERATION = toy.federation(labels_at_clients=True)
HPARAMS = dataclasses.replace(toy.HPARAMS, k_u=2, num_clients=5, server_trains=False, threshold=0.8, labeled_rows=0)
CASES = {
    'labels at the server': {'options': FedMatch(helper_every=2, lambda_a=0.7, lambda_i=0.5, lambda_l2=1.0)},
    'labels at the clients, helpers persist, small changes stay': {
        'labeled_rows': 2,
        'local': Local(optimizer_state='kept'),
        'options': FedMatch(
            helper_every=2,
            helpers_persist=True,
            lambda_s=1.5,
            lambda_a=0.7,
            lambda_i=0.5,
            lambda_l2=0.3,
            delta_threshold=4e-3,
            l1_threshold=6e-3,
        ),
    },
    'the server alone first': {
        'pre_rounds': 1,
        'server_trains': True,
        'momentum': 0.0,
        'nesterov': False,
        'weight_decay': 0.0,
        'options': FedMatch(lambda_s=2.5),
    },
}
COHORTS = [4, 0, 2], [1, 2, 4], [1, 2, 4], [2, 3]  # the last is filled up with a client that takes no part


def start(case, **changes):
    """Method and first state, its logits louder than they come."""
    hparams = dataclasses.replace(HPARAMS, **(CASES[case] | changes))
    algorithm = algorithms.build('fedmatch', linear.model(), toy.VIEWS, hparams)
    state = algorithm.init(KEY)
    state = state.replace(student=state.student._replace(top=jax.tree.map(lambda w: 3.0 * w, state.student.top)))
    return algorithm, state, hparams


@functools.cache
def rounds_of(case, rounds=None, k_s=0):
    """States after each round, the first of them before any, and the metrics of each."""
    algorithm, state, _ = start(case)
    run, states, metrics = jax.jit(algorithm.round), [state], []
    for visits, ids in enumerate(COHORTS[:rounds]):
        padding = 3 - len(ids)
        cohort = toy.cohort([*ids, *range(padding)], [visits] * 3)
        cohort = cohort._replace(weight=jnp.array([1.0] * len(ids) + [0.0] * padding))
        state, of_round = run(KEY, state, FEDERATION, cohort, jnp.int32(k_s))
        states.append(state)
        metrics.append(of_round)
    assert run._cache_size() == 1
    return states, metrics


PIECES = ('bottom', 'top')


def arrays(tree):
    """The two matrices of sigma or psi, in float64."""
    return [np.asarray(tree[PIECES.index(name)]['w'], np.float64) for name in PIECES]


def added(a, b):
    return [x + y for x, y in zip(a, b, strict=True)]


class Server:
    """Server and clients, one after another."""

    def __init__(self, h, student, psi):
        self.h, self.sigma, self.psi, self.round = h, arrays(trainable(student)), arrays(psi), 0
        self.mean = linear.numbers(student)['mean']
        self.last, self.embeddings, self.sent, self.kept = {}, {}, {}, {}
        self.pixels = linear.Server(KEY, h, student).pixels

    def logits(self, w, x, mean):
        return (x @ w[0] - mean) @ w[1]

    def run_round(self, federation, ids, visit, lr):
        h, o = self.h, self.h.options
        if not o.helpers_persist:
            self.sent = {}
        if (self.round + 1) % o.helper_every == 0:
            self.sent |= {n: [self.last[m] for m in self.helpers_of(n)] for n in ids}
        uploads, measured = [], []
        for client in ids:
            cohort = Cohort(jnp.array([client]), jnp.ones(1), jnp.array([visit]))
            rows, known = jax.device_get(draws.client_rows(KEY, federation, cohort, h.batches))
            upload, found = self.train(federation, client, rows[0], known[0], lr)
            uploads.append(upload)
            measured.append(found)
        noise = fedmatch.noise(rng.fold(KEY, 'noise'), toy.SHAPE)[None]
        x = np.asarray(toy.VIEWS.normalize(noise), np.float64).reshape(1, -1)
        for client, (sigma, psi, mean) in zip(ids, uploads, strict=True):
            self.last[client], self.embeddings[client] = psi, softmax(self.logits(added(sigma, psi), x, mean))[0]
        self.sigma, self.psi, self.mean = jax.tree.map(lambda *x: sum(x) / len(x), *uploads)
        self.round += 1
        return {name: np.mean([found[name] for found in measured]) for name in measured[0]}

    def helpers_of(self, client):
        """The nearest others that have uploaded; nobody for a client that has not."""
        if client not in self.embeddings:
            return []
        aside = {n: np.sum((e - self.embeddings[client]) ** 2) for n, e in self.embeddings.items() if n != client}
        return sorted(aside, key=lambda n: (aside[n], n))[: self.h.options.helpers]

    def train(self, federation, client, rows, labeled, lr):
        h, o, key = self.h, self.h.options, rng.fold(KEY, 'local', self.round, client)
        sigma, psi, mean = self.sigma, self.psi, self.mean
        helpers = [added(self.sigma, other) for other in self.sent.get(client, [])]
        sgd = self.kept.get(client) or {'sigma': Sgd(h, lr), 'psi': Sgd(h, lr)}
        sgd['sigma'].lr = sgd['psi'].lr = lr
        found = dict.fromkeys(('loss_local', 'loss_agreement', 'loss_inter_client'), 0.0)
        for t, read in enumerate(rows):
            images, truth, step_key = federation.client_images[read], federation.client_labels[read], rng.fold(key, t)

            names = 'sigma_dropout', 'psi_dropout'
            factors = {name: [factor(rng.fold(step_key, name, piece)) for piece in PIECES] for name in names}

            def trained(w, x, name, rows=slice(None), factors=factors):
                """Logits in training, with the mean of `rows`."""
                y = x @ w[0]
                return (y - y[rows].mean(axis=0)) * factors[name][0] @ w[1] * factors[name][1]

            if labeled[t].any():
                head = h.labeled_rows
                x = self.pixels('supervised', rng.fold(step_key, 'supervised'), images[:head])

                def labels_loss(*sigma, x=x, psi=psi, truth=truth[:head], trained=trained):
                    logits = trained(added(sigma, psi), x, 'sigma_dropout')
                    return o.lambda_s * np.mean(linear.cross_entropies(logits, truth))

                found['loss_local'] += labels_loss(*sigma) / h.k_u
                gradient = linear.gradients_of(labels_loss, sigma)
                mean = 0.9 * mean + 0.1 * (x @ added(sigma, psi)[0]).mean(axis=0)
                sigma = sgd['sigma'].step(sigma, gradient)

            x = np.asarray(toy.VIEWS.normalize(images), np.float64).reshape(len(images), -1)
            p = softmax(self.logits(added(sigma, psi), x, mean))
            theirs = [softmax(self.logits(helper, x, self.mean)) for helper in helpers]
            labels = sum(np.eye(toy.CLASSES)[q.argmax(axis=1)] for q in [p, *theirs]).argmax(axis=1)
            sure = (p.max(axis=1) >= h.threshold) & ~labeled[t]
            strong = self.pixels('strong', rng.fold(step_key, 'strong'), images)

            def unlabeled_losses(psi, now=(sigma, mean, x, theirs, labels, sure, strong, trained, ~labeled[t])):
                """What moves psi, agreement, and the divergence from the helpers."""
                sigma, mean, x, theirs, labels, sure, strong, trained, guessed = now
                w, count = added(sigma, psi), max(sure.sum(), 1)
                agreement = linear.cross_entropies(trained(w, strong, 'psi_dropout', guessed), labels) @ sure / count
                q = softmax(self.logits(w, x, mean))
                inter = sum(np.sum(p * np.log(p / q), axis=1) @ sure for p in theirs) / max(len(theirs), 1) / count
                value = o.lambda_a * agreement + o.lambda_i * inter
                value += o.lambda_l2 * sum(np.sum((a - b) ** 2) for a, b in zip(sigma, psi, strict=True))
                return value + o.lambda_l1 * sum(np.sum(np.abs(b)) for b in psi), agreement, inter

            for name, term in zip(found, unlabeled_losses(psi), strict=True):
                found[name] += term / h.k_u
            gradient = linear.gradients_of(lambda *psi, losses=unlabeled_losses: losses(psi)[0], psi)
            mean = 0.9 * mean + 0.1 * (strong[~labeled[t]] @ added(sigma, psi)[0]).mean(axis=0)
            psi = sgd['psi'].step(psi, gradient)
        if h.local.optimizer_state == 'kept':
            self.kept[client] = sgd
        found['helpers_used'] = len(helpers)
        if o.delta_threshold:
            psi, found['psi_sent'] = self.arriving(psi, self.psi, o.l1_threshold)
            sigma, found['sigma_sent'] = self.arriving(sigma, self.sigma, 0.0)
        return (sigma, psi, mean), found

    def arriving(self, new, received, smallest):
        """An entry that hardly changed is not sent, and the server has the one that it gave out. Whether it changed is
        seen with entries up to `smallest` set to 0; one that is sent goes as it is."""
        seen = [np.where(np.abs(w) > smallest, w, 0) for w in new]
        sent = [np.abs(a - b) > self.h.options.delta_threshold for a, b in zip(seen, received, strict=True)]
        share = sum(x.sum() for x in sent) / sum(x.size for x in sent)
        return [np.where(x, a, b) for x, a, b in zip(sent, new, received, strict=True)], share


def assert_close(found, expected):
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-4)


@pytest.mark.parametrize('case', slow_but(list(CASES)[:2], 'labels at the server'))
def test_rounds_equal_the_ones_in_numpy(case):
    _, state, h = start(case)
    server, (states, metrics) = Server(h, state.student, state.server), rounds_of(case)
    for visit, (ids, after, of_round) in enumerate(zip(COHORTS, states[1:], metrics, strict=True)):
        lr = 0.5 * (h.lr + h.lr_min) + 0.5 * (h.lr - h.lr_min) * np.cos(np.pi * visit / h.lr_rounds)
        for name, value in server.run_round(jax.device_get(FEDERATION), ids, visit, lr).items():
            np.testing.assert_allclose(of_round[name], value, rtol=1e-3, atol=1e-5, err_msg=name)
        assert_close(arrays(trainable(after.student)), server.sigma)
        assert_close(arrays(after.server), server.psi)
        np.testing.assert_allclose(linear.numbers(after.student)['mean'], server.mean, rtol=2e-3, atol=1e-4)
        assert set(np.flatnonzero(after.clients.known)) == server.last.keys()
        for n, psi in server.last.items():
            np.testing.assert_allclose(after.clients.embedding[n], server.embeddings[n], rtol=2e-3, atol=1e-4)
            assert_close(arrays(jax.tree.map(lambda w, n=n: w[n], after.clients.psi)), psi)
    rates = [float(of_round['mask_rate']) for of_round in metrics]
    assert any(0.05 < rate < 0.95 for rate in rates)  # both sides of the threshold were compared
    used = [float(of_round['helpers_used']) for of_round in metrics]
    assert [value > 0 for value in used] == [False, True, 'persist' in case, True]
    if h.options.delta_threshold:
        assert all(0 < metrics[1][name] < 1 for name in ('psi_sent', 'sigma_sent'))


def test_psi_starts_as_a_share_of_sigma():
    algorithm, state, _ = start('labels at the server', options=FedMatch(psi_start=0.3))
    state = algorithm.init(KEY)
    chex.assert_trees_all_equal(state.server, jax.tree.map(lambda w: 0.3 * w, trainable(state.student)))
    assert jax.grad(fedmatch._size)(0.0) == 0  # an entry at 0 stays there


def test_small_entries_of_psi_are_zero_in_evaluation():
    algorithm, state, _ = start('labels at the server', options=FedMatch(l1_threshold=0.01))
    images, sigma = FEDERATION.client_images[:4], trainable(state.student)
    psi = jax.tree.map(lambda w: jnp.where(jnp.abs(w) > 0.01, w, 0), state.server)
    assert 0.1 < np.mean(np.concatenate([np.ravel(w) for w in jax.tree.leaves(psi)]) == 0) < 0.9
    variables = with_parameters(state.student, jax.tree.map(jnp.add, sigma, psi))
    expected, _ = core.forward(linear.model(), variables, toy.VIEWS.normalize(images), None, False)
    predictions = algorithm.predict(state, images)
    assert set(predictions) == {algorithm.headline} == {'student'}
    np.testing.assert_allclose(predictions['student'], expected, rtol=1e-5, atol=1e-6)


def test_labeled_images_have_no_part_in_psis_step():
    """Nor in the statistics: two of four are labeled, and turn black."""
    _, state, h = start('labels at the clients, helpers persist, small changes stay', threshold=0.0)
    parts = fedmatch.Parts(linear.model(), toy.VIEWS, h)
    both = {'sigma': trainable(state.student), 'psi': state.server}
    labeled, images = jnp.array([True, True, False, False]), FEDERATION.client_images[:4]
    found = []
    for seen in (images, images.at[:2].set(0)):
        batch = core.Batch(seen, FEDERATION.client_labels[:4], labeled)
        arguments = both, core.statistics(state.student), batch, KEY
        found.append(jax.grad(partial(fedmatch.agreement_loss, parts, None), has_aux=True)(both['psi'], *arguments))
    (gradient, (statistics, *_)), (same, (of_same, *_)) = found
    chex.assert_trees_all_close((gradient, statistics), (same, of_same), rtol=1e-5, atol=1e-6)
    assert any(np.any(leaf != 0) for leaf in jax.tree.leaves(gradient))


@pytest.mark.slow
def test_the_server_trains_sigma_alone():
    """One step of plain SGD at sigma + psi, weight lambda_s, in a round without clients; they join in the next."""
    (before, after, last), (metrics, more) = rounds_of('the server alone first', 2, k_s=1)
    chex.assert_trees_all_equal((before.server, before.clients), (after.server, after.clients))
    assert np.isnan(metrics['loss_local'])
    psi = dict(zip(PIECES, arrays(before.server), strict=True))
    h = start('the server alone first')[2]
    server = linear.Server(KEY, h, before.student, 'student')
    server.student = server.student | {name: server.student[name] + psi[name] for name in PIECES}
    server.lr = 2.5 * h.lr
    loss = server.supervised_phase(jax.device_get(FEDERATION), 1)['loss_supervised']
    np.testing.assert_allclose(metrics['loss_supervised_ce'], loss, rtol=1e-4)
    found = linear.numbers(after.student)
    assert_close([found[name] + psi[name] for name in PIECES], [server.student[name] for name in PIECES])
    assert np.isfinite(more['loss_local'])
    assert not np.array_equal(*(arrays(state.server)[0] for state in (after, last)))


def test_helpers_are_decided_on_by_the_round_alone():
    """A condition of one truth value: under `vmap` a client's own condition would become both branches."""
    algorithm, state, _ = start('labels at the server')
    arguments = KEY, state, FEDERATION, toy.cohort([1, 2]), jnp.int32(0)
    equations = runs.equations(jax.make_jaxpr(algorithm.round)(*arguments).jaxpr)
    (condition,) = (equation for equation in equations if equation.primitive.name == 'cond')
    assert condition.invars[0].aval.shape == ()


# --- by hand


@pytest.mark.parametrize(
    ('votes', 'present', 'expected'),
    [
        ((0, 0), (True, True), 0),  # two against one
        ((0, 1), (True, True), 0),  # one vote each: the lowest
        ((1, 0), (True, False), 1),  # one each of two: the lowest
        ((0, 0), (False, False), 2),  # nobody helps
    ],
)
def test_the_label_of_most_votes_is_agreed_upon(votes, present, expected):
    labels = fedmatch.vote(jnp.array([2, 1]), jnp.array([[vote, 1] for vote in votes]), jnp.array(present), 3)
    np.testing.assert_array_equal(labels, [expected, 1])


def test_noise_has_the_moments_of_a_truncated_gaussian():
    """A Gaussian of mean and deviation 125 between 0 and 255 has mean 125 + 125 (phi(1) - phi(1.04)) / (0.692...)."""
    pixels = np.asarray(fedmatch.noise(rng.root(0), (64, 64, 3)))
    phi, cdf = (lambda x: math.exp(-x * x / 2) / math.sqrt(2 * math.pi)), (lambda x: math.erf(x / math.sqrt(2)) / 2)
    expected = 125 + 125 * (phi(1) - phi(1.04)) / (cdf(1.04) + cdf(1))
    assert pixels.mean() == pytest.approx(expected, abs=2.0)
    assert (pixels.dtype, pixels.min(), pixels.max()) == (np.uint8, 0, 255)


def test_what_hardly_changed_is_not_sent():
    """More than an eighth from the received entry, where entries up to 1/16 are seen as 0; what is sent goes as is."""
    rows = (  # trained, received, arriving
        (0.7, 0.5, 0.7),
        (0.125, 0.0, 0.0),  # by just an eighth
        (0.04, 0.13, 0.04),  # seen as 0
        (-0.07, 0.05, 0.05),
    )
    trained, received, expected = ([jnp.array(x)] for x in zip(*rows, strict=True))
    sent, share = fedmatch.only_changes(trained, received, 0.125, 0.0625)
    chex.assert_trees_all_equal(sent, expected)
    assert float(share) == 2 / 4


@pytest.mark.parametrize('labeled_rows', [0, 4])
def test_bytes_of_psi_and_sigma(labeled_rows):
    """sigma and psi down, psi up (both with labels at the clients), two psi of helpers in every tenth round. A client
    that sends what changed sends a quarter of psi and a half of sigma here; statistics whole, and downloads as ever."""
    settings = {'helpers': 2, 'helper_every': 10, 'helpers_persist': False, 'delta_threshold': 0.0}
    context = small(options=settings, labeled_rows=labeled_rows)
    for index, helpers in ((0, 0), (8, 0), (9, 2), (19, 2)):
        cost = price('fedmatch', context._replace(index=index))
        assert cost.download == (2 + helpers) * RESNET9 + STATISTICS
        assert cost.upload == (2 if labeled_rows else 1) * RESNET9 + STATISTICS
    few = context._replace(index=9, metrics={'helpers_used': np.float32(0.7)})  # three of ten know two, one knows one
    assert 10 * price('fedmatch', few).download == pytest.approx((20 + 7) * RESNET9 + 10 * STATISTICS, rel=1e-12)
    context = small(options=settings | {'delta_threshold': 1e-5}, labeled_rows=labeled_rows)
    metrics = {'helpers_used': np.float32(0), 'psi_sent': np.float32(0.25), 'sigma_sent': np.float32(0.5)}
    cost, most = (price('fedmatch', context._replace(metrics=values)) for values in (metrics, None))
    assert cost.upload == (0.75 if labeled_rows else 0.25) * RESNET9 + STATISTICS
    assert most.upload == (2 if labeled_rows else 1) * RESNET9 + STATISTICS
    assert cost.download == most.download == 2 * RESNET9 + STATISTICS
    assert cost.step_work == most.step_work


def test_bytes_and_seconds_of_fedmatch_follow_what_was_sent():
    """Psi and sigma of 13,706 entries each; five clients at 1 Mbps, which is 125,000 bytes a second."""
    changes = {'fedmatch.delta_threshold': 1e-3, 'data.client_labels': 20, 'cost.client_out': (1.0, 1.0)}
    config = runs.config(algorithm='fedmatch', federation__mu=1, federation__num_active=5)
    config.update_from_flattened_dict(changes)
    model = model_of(config)
    bills = []
    for psi, sigma in ((0.25, 0.5), (0.0, 0.0)):
        metrics = {'helpers_used': np.float32(0), 'psi_sent': np.float32(psi), 'sigma_sent': np.float32(sigma)}
        bills.append(costs.price_round(model, 0, 8, everybody(model), metrics))
    some, none = bills
    assert some.bytes_up == 4 * round(5 * 13_706 * 0.25) + 4 * round(5 * 13_706 * 0.5)
    assert none.bytes_up == 0
    assert some.bytes_down == none.bytes_down == 5 * 2 * 4 * 13_706
    seconds = some.bytes_up / 5 / 125_000
    assert some.simulated_seconds - none.simulated_seconds == pytest.approx(seconds, rel=1e-9)
