"""Fed-SHVR: its objective, its rounds against Algorithm 1 to the letter, its corrections, and what it minimizes."""

import dataclasses

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import algorithms, costs
from semisfl_jax.algorithms.fed_shvr import FedShvr, build, sharpen, sharpened_rule
from semisfl_jax.core import rng, sampling
from semisfl_jax.core.hparams import HParams, Local, optimizer, plain_steps
from semisfl_jax.core.sampling import BatchPlan
from tests.helpers import linear, quadratics, shvr_twin, toy
from tests.helpers.linear_local import softmax
from tests.helpers.marks import slow_but
from tests.helpers.prices import bill, shvr_model
from tests.helpers.rows import STUDENT, Row

MODEL = 4 * 3_975_010  # bytes of the MLP with 5,000 units: 784 * 5000 + 5000 + 5000 * 10 + 10 parameters


ROWS = {
    'fed_shvr': Row(f'{STUDENT} clients server', f'{STUDENT} clients server', by_images=True),
    'fed_sh': Row(STUDENT, STUDENT, by_images=True),
    'fed_svr': Row(f'{STUDENT} clients server', f'{STUDENT} clients server', by_images=True),
}
# Client n has 3 + 4 n unlabeled images and n labeled ones; batches hold one labeled image and three others.
FEDERATION = toy.federation(labels_at_clients=True)
EVERYONE = [3, 0, 4, 1, 2]  # in any order
STEPS = [1, 2, 3, 5, 6]  # floor((3 + 4 n) / 3), where floor(n / 1) is never more; client 0 has 3 / 4, so the least
HPARAMS = dataclasses.replace(
    toy.HPARAMS,
    labeled_rows=1,
    server_trains=False,
    num_clients=5,
    momentum=0.0,
    nesterov=False,
    weight_decay=0.0,
    lr_min=0.02,
    local=Local(epochs=1, steps='longest', weighting='samples'),
    options=FedShvr(alpha0=0.9, alpha1=0.6, alpha2=0.2, ramp_rounds=0),
)


def hparams(**changes):
    return dataclasses.replace(HPARAMS, **changes)


# --- the objective

LOGITS = np.array([[2.0, -1.0, 0.5], [0.3, 0.2, 0.1], [-4.0, 5.0, 5.5], [0.0, 0.0, -80.0]])


def test_sharpened_labels_are_powers_of_the_prediction():
    """Uniform at 0, the prediction at 1, one-hot at infinity and, up to rounding, at 1,000."""
    logits, one_hot = jnp.array(LOGITS), np.eye(3)[[0, 0, 2, 0]]  # of two equal ones, the first
    for exponent in (0.0, 0.5, 1.0, 4.0 / 3.0, 6.0):
        powers = softmax(LOGITS) ** exponent
        expected = powers / powers.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(sharpen(logits, exponent), expected, rtol=1e-5, atol=1e-30)
    np.testing.assert_array_equal(sharpen(logits, jnp.inf), one_hot)
    np.testing.assert_allclose(sharpen(logits, 1e3)[:3], one_hot[:3], atol=1e-12)


@pytest.mark.parametrize(('alpha0', 'alpha1', 'alpha2'), [(1.0, 0.75, 0.1), (0.5, 0.0, 0.3), (0.0, 0.75, 0.0)])
def test_the_objective_is_three_means_over_weighted_rows(alpha0, alpha1, alpha2):
    """Three terms as means over the weighted rows; labels have no gradient; alpha0 = 0 leaves nothing to learn."""
    received, logits, weight = LOGITS[:3], LOGITS[[1, 2, 0]], np.array([1.0, 0.0, 1.0])
    rule = sharpened_rule(HParams(options=FedShvr(alpha0=alpha0, alpha1=alpha1, alpha2=alpha2)), 1.0)

    def value(logits):
        return rule(jnp.array(received), logits, jnp.array(weight))[0]

    p, q = softmax(received), softmax(logits)
    v = p ** (alpha0 / alpha1) if alpha1 else np.eye(3)[p.argmax(axis=1)]
    v /= v.sum(axis=1, keepdims=True)
    rows = -alpha0 * np.sum(v * np.log(q), axis=1) + alpha2 * np.sum(q * np.log(3 * q), axis=1)
    rows += alpha1 * np.sum(v * np.log(np.maximum(3 * v, 1e-300)), axis=1)
    np.testing.assert_allclose(value(jnp.array(logits)), (rows * weight).sum() / 2, rtol=1e-5)
    gradient = alpha0 * (q - v) + alpha2 * q * (np.log(q) - np.sum(q * np.log(q), axis=1, keepdims=True))
    np.testing.assert_allclose(jax.grad(value)(jnp.array(logits)), gradient * weight[:, None] / 2, rtol=1e-4, atol=1e-7)
    labels, every = rule(jnp.array(received), jnp.array(logits), jnp.array(weight))[1:]
    np.testing.assert_array_equal(labels, p.argmax(axis=1))
    assert np.all(every)


# --- rounds

SHARES = np.array([3 + 5 * n for n in range(5)]) / sum(3 + 5 * n for n in range(5))


def rounds(name, count, h, cohorts=None, model=None):
    """The states of so many rounds, the first one included."""
    algorithm = algorithms.build(name, model or linear.model(), toy.VIEWS, h)
    states, run, visits = [algorithm.init(rng.root(0))], jax.jit(algorithm.round), np.zeros(5, int)
    for number in range(count):
        ids = cohorts[number] if cohorts else EVERYONE
        state, _ = run(rng.root(0), states[-1], FEDERATION, toy.cohort(ids, visits[ids]), jnp.int32(0))
        visits[ids] += 1
        states.append(state)
    return states


@pytest.mark.parametrize(
    ('name', 'alpha1'),
    slow_but([('fed_shvr', 0.6), ('fed_svr', 0.6), ('fed_sh', 0.6), ('fed_shvr', 0.0)], ('fed_shvr', 0.6)),
)
def test_four_rounds_are_algorithm_1_to_the_letter(name, alpha1):
    """With clients that store their model and d_k, and its first round, which moves nothing. During a ramp of alpha0
    from 0, which takes 25 rounds by default: Section V-A's 50 epochs, two in a round. With soft or hard labels."""
    h = hparams(options=FedShvr(alpha0=0.9, alpha1=alpha1, alpha2=0.2, ramp_rounds=3))
    assert FedShvr().ramp_rounds == 25
    states = rounds(name, 4, h)
    server = shvr_twin.Server(name, rng.root(0), h, states[0].student, FEDERATION)
    assert [client.steps for client in server.clients] == STEPS
    for number, state in enumerate(states):
        server.run_round()  # theta^t is what its clients receive, and what ours has after t - 1 rounds
        if number == 1:
            moved = [np.abs(server.theta[key] - linear.numbers(states[0].student)[key]).max() for key in server.theta]
            assert min(moved) > 1e-3
        for key, value in linear.numbers(state.student).items():
            np.testing.assert_allclose(value, server.theta[key], rtol=1e-4, atol=2e-5, err_msg=f'{number} {key}')


@pytest.mark.slow
@pytest.mark.parametrize('name', ['fed_shvr', 'fed_svr'])
def test_corrections_of_all_clients_sum_to_nothing(name):
    """sum_k w_k d_k = 0, and with averages of models sum_k w_k tau_k d_k = 0, whoever has taken part."""
    *_, before, state = rounds(name, 3, hparams(), [[0, 2, 4], [1, 2], [0, 3]])
    for average, controls in zip(jax.tree.leaves(state.server), jax.tree.leaves(state.clients), strict=True):
        tau = np.array(STEPS).reshape(-1, *[1] * average.ndim) if name == 'fed_svr' else 1.0
        d = np.float64(average) / tau - np.float64(controls)
        total = np.tensordot(SHARES, tau * d, axes=1)
        assert np.abs(d).max() > 1e-2
        np.testing.assert_allclose(total, 0.0, atol=1e-5 * np.abs(d).max())
    # who was never there has no gradient yet; who was, keeps the last one
    for old, new in zip(jax.tree.leaves(before.clients), jax.tree.leaves(state.clients), strict=True):
        np.testing.assert_array_equal(old[jnp.array([1, 2, 4])], new[jnp.array([1, 2, 4])])
        assert not np.any(old[3])
        assert np.any(new[3])


@pytest.mark.slow
def test_with_equal_steps_and_hard_labels_fed_sh_is_fedavg_with_pseudo_labels():
    hard = FedShvr(alpha0=1.0, alpha1=0.0, alpha2=0.0, ramp_rounds=0)
    ours = rounds('fed_sh', 2, hparams(options=hard, local=Local(weighting='samples')))[-1]
    local = Local(objective='pseudo_label', weighting='samples')
    theirs = rounds('fedavg', 2, hparams(options=None, local=local, threshold=0.0))[-1]
    chex.assert_trees_all_close(ours.student, theirs.student, rtol=1e-4, atol=1e-6)


def test_momentum_is_normalized_as_in_fednova():
    """By the distance that SGD of optax goes under a gradient of 1."""
    for momentum, nesterov in ((0.0, False), (0.9, False), (0.9, True), (0.3, True)):
        h = hparams(momentum=momentum, nesterov=nesterov)
        sgd, x, distance = optimizer(h, 1.0), jnp.zeros(()), [0.0]
        state = sgd.init(x)
        for _ in range(7):
            update, state = sgd.update(jnp.ones(()), state, x)
            x = x + update
            distance.append(-float(x))
        np.testing.assert_allclose(plain_steps(h, jnp.arange(8)), distance, rtol=1e-5)


def test_steps_are_those_of_the_larger_set_rounded_down():
    """Step 1 of Algorithm 1: tau_k = floor(max(M_k E / B_u, N_k E / B_l))."""
    cohort, sizes = toy.cohort(EVERYONE), BatchPlan(3, 4, 1, 2, 'longest')
    found = sampling.client_steps(FEDERATION, cohort, sizes)
    expected = [max(2 * (3 + 4 * n) // 3, 2 * n, 1) for n in EVERYONE]
    np.testing.assert_array_equal(found, expected)
    many_labels = FEDERATION.replace(labeled_size=jnp.array([0, 9, 2, 0, 0]))
    np.testing.assert_array_equal(sampling.client_steps(many_labels, toy.cohort([1, 2, 0]), sizes), [18, 7, 2])
    paper = FEDERATION.replace(size=jnp.full(5, 5940), labeled_size=jnp.full(5, 60))
    for batch, steps in ((64, 371), (32, 3)):  # in the second, of labels alone
        of_paper = BatchPlan(50, batch, 32, 2, 'longest')
        np.testing.assert_array_equal(sampling.client_steps(paper, cohort, of_paper), steps)
    assert sampling.most_steps(FEDERATION, sizes) >= max(expected)
    few = FEDERATION.replace(index=FEDERATION.index[:, :2], size=jnp.full(5, 2))  # two of them twice are two batches
    assert sampling.most_steps(few, sizes) == 2 * FEDERATION.labeled_index.shape[1]


@pytest.mark.slow
def test_on_quadratics_only_fed_shvr_reaches_the_minimizer():
    """Clients of unequal curvature and 3, 5, 8 and 4 steps. Minimizers in closed form, in float64."""
    target = quadratics.minimizer(quadratics.WEIGHTS)
    last = {name: quadratics.path(build, form, 400)[-1] for name, form in quadratics.FORMS.items()}
    assert np.linalg.norm(last['Fed-SHVR'] - target) < 1e-5
    by_steps = quadratics.minimizer(quadratics.WEIGHTS * np.array(quadratics.STEPS))
    assert np.linalg.norm(last['Fed-SVR'] - by_steps) < 1e-5
    assert np.linalg.norm(by_steps - target) > 0.05
    for name in ('Fed-SH', 'FedAvg'):
        assert np.linalg.norm(last[name] - target) > 0.01, name
        assert np.linalg.norm(last[name] - by_steps) > 0.01, name


@pytest.mark.parametrize(
    ('algorithm', 'changes', 'down'),
    [
        ('fed_shvr', {}, 1),
        ('fed_shvr', {'federation.num_active': 5}, 2),
        ('fed_svr', {'failures.inside': 0.1}, 2),
        ('fed_shvr', {'k_s': 5}, 2),
        ('fed_sh', {'k_s': 5}, 1),
    ],
)
def test_the_average_gradient_travels_where_clients_may_be_absent(algorithm, changes, down):
    """15.16 MiB down and up for each client; the average gradient travels, too, where clients may be
    absent, or where the server trains between two of the models that they receive."""
    active = changes.get('federation.num_active', 10)
    found = bill(shvr_model(algorithm, **changes), range(active))
    assert (found.bytes_down, found.bytes_up) == (down * active * MODEL, active * MODEL)


@pytest.mark.slow
def test_statistics_are_not_corrected():
    """The average gradient of CNN13 has no part for BatchNorm's running statistics."""
    changes = {'data.name': 'cifar10', 'federation.num_active': 5, 'federation.num_clients': 10}
    model = shvr_model('fed_shvr', **changes, **{'model.name': 'cnn13'})
    statistics, parameters = 4 * 2 * (3 * 128 + 3 * 256 + 512 + 256 + 128), 4 * 3_123_850
    assert bill(model, range(5)).bytes_down == 5 * (2 * parameters + statistics)


def test_images_are_labeled_once_a_round():
    """Two operations for each of 3,970,000 weights, and one for each number that comes out, 6,000 times; a step is
    three such products for 64 images, less the gradient of the images."""
    model = shvr_model('fed_shvr')
    context = costs.CostContext(
        model.pieces, model.whole_bytes, model.hparams, 10, unlabeled=6_000, steps=371, everyone=True, labels=True
    )
    cost = algorithms.get('fed_shvr').price(context)
    products = 2 * (784 * 5000 + 5000 * 10)
    assert 1.0 < cost.setup_work / (6_000 * products) < 1.01
    assert 1.0 < cost.step_work / (64 * (3 * products - 2 * 784 * 5000)) < 1.02
