"""K_s against the sequences worked out from the paper's and the code's rules (Section IV-B; docs/ledger.md)."""

import itertools

import numpy as np
import pytest

from semisfl_jax import config as config_lib
from semisfl_jax.base.errors import UserError
from semisfl_jax.config import get_config
from semisfl_jax.core import frequency
from semisfl_jax.core.frequency import FrequencyOptions
from semisfl_jax.training import experiment

CIFAR10, SVHN = 4000 / 50_000, 1000 / 73_257


def options(rule, share=CIFAR10, **changes):
    settings = {'k_s': 100, 'alpha': 1.5, 'beta': 8.0, 'period': 10, 'horizon': 100, 'check_every': 100, 'k_u': 50}
    return FrequencyOptions(rule=rule, **{**settings, 'labeled_share': share, **changes})


def run(settings, rounds, loss_s=lambda h: 1.0, loss_u=lambda h: -0.01 * h, lr=lambda h: 0.02, mask=lambda h: 0.5):
    """K_s of every round, and the one that would follow."""
    state, seen = frequency.init(settings), []
    for h in range(rounds):
        seen.append(int(state.k_s))
        state = frequency.update(state, settings, loss_s(h), loss_u(h), lr(h), mask(h))
    return [*seen, int(state.k_s)]


def changes(sequence):
    """Distinct values in order, after the first."""
    return [b for a, b in itertools.pairwise(sequence) if a != b]


@pytest.mark.parametrize(
    ('rule', 'share', 'expected'),
    [
        ('paper', CIFAR10, [66, 44, 32]),
        ('code', CIFAR10, [67, 45, 32]),
        ('paper', SVHN, [66, 44, 29, 19, 12, 8, 5]),
        ('code', SVHN, [67, 45, 30, 20, 13, 9, 6, 5]),
        ('fixed', CIFAR10, []),
    ],
)
def test_k_s_follows_the_sequences_of_both_rules(rule, share, expected):
    sequence = run(options(rule, share), 1000)
    assert changes(sequence) == expected
    assert all(sequence[h] == sequence[h - 1] for h in range(1, 1001) if h % 100)  # it moves at checks alone


def test_rules_differ_where_the_code_divides_by_steps():
    """Supervised loss falls a little faster per round, but in twice the steps: only the code's rule shrinks K_s."""
    falls = {'loss_s': lambda h: -0.011 * h, 'loss_u': lambda h: -0.01 * h}
    assert changes(run(options('paper'), 100, **falls)) == []
    assert changes(run(options('code'), 100, **falls)) == [67]


def test_half_of_the_pairs_is_enough():
    """Windows of one round, four pairs at the second check: the unlabeled loss falls in two of them."""
    settings = options('paper', period=1, horizon=4, check_every=4)
    for falls, expected in (((4, 5), [66]), ((5,), [])):  # rounds whose loss is lower than that of the one before
        loss_u = -np.cumsum(np.isin(np.arange(8), falls)).astype(float)
        assert changes(run(settings, 8, loss_u=loss_u.__getitem__)) == expected


@pytest.mark.parametrize(('fall', 'expected'), [(0.9e-5, []), (1.1e-5, [67])])
def test_the_least_lead_in_the_code(fall, expected):
    """Per window of ten rounds, divided by a learning rate of 0.02 and 50 steps, which is 1: at least 1e-5."""
    settings = options('code')
    assert changes(run(settings, 100, loss_u=lambda h: -fall * (h // 10))) == expected


def test_a_check_sees_the_last_horizon_alone():
    """The loss falls up to window 10. Check 1 sees 9 falls of 9, check 2 one of 10, check 3 none."""
    assert changes(run(options('paper'), 300, loss_u=lambda h: -float(min(h // 10, 10)))) == [66]
    state, shares = frequency.init(settings := options('paper')), []
    for h in range(300):
        state = frequency.update(state, settings, 1.0, -float(min(h // 10, 10)), 0.02, 0.5)
        if h >= 199 and (h + 1) % 100 == 0:
            shares.append(frequency.unlabeled_falls_faster(state.windows, settings))
    assert shares == [0.1, 0.0]


def test_rounds_without_an_unlabeled_loss_are_left_out():
    """15 warm-up rounds spoil the first two windows. Of the 7 pairs left at the first check, 4 fall: R = 4 / 7."""

    def loss_u(h):
        return np.nan if h < 15 else -float(min(h // 10, 6))

    assert changes(run(options('paper'), 100, loss_u=loss_u)) == [66]
    assert changes(run(options('paper'), 100, loss_u=lambda h: loss_u(h) if h < 50 else -5.0)) == []  # 3 / 7
    assert changes(run(options('paper'), 300, loss_u=lambda h: np.nan)) == []


def test_a_least_k_s_that_no_round_could_have():
    """1e9 times 0.1 times 50 iterations; at the other end, a million is allowed."""
    with pytest.raises(UserError, match=r'beta=1000000000\.0'):
        frequency.check(options('paper', share=0.1, beta=1e9))
    frequency.check(options('paper', share=0.1, beta=2e5))
    frequency.check(options('fixed', share=0.1, beta=1e9))


def authors_k_s(loss_x, loss_u, lr, share, alpha=1.5, beta=8.0, k_s=100, k_u=50):
    """K_s after every round, as the authors' code decides: by means of ten over the last 110 rounds, at each 100th.
    Their record of rounds without a cross-entity phase holds 0 for the unlabeled loss."""
    steps, decided = [], []
    for number in range(1, len(loss_x) + 1):
        steps.append(k_s)
        if number % 100 == 0:
            last = slice(max(number - 110, 0), number)
            x, u, rate, k = (np.reshape(np.array(v)[last], (-1, 10)).mean(axis=1) for v in (loss_x, loss_u, lr, steps))
            faster = [
                (u[i] - u[i + 1]) / rate[i] / k_u - (x[i] - x[i + 1]) / rate[i] / k[i] >= 1e-5
                for i in range(len(x) - 1)
            ]
            if np.mean(faster) >= 0.5:
                k_s = round(max(k_s / alpha, beta * k_u * share))
        decided.append(k_s)
    return decided


@pytest.mark.parametrize('pre_rounds', [0, 15])
def test_code_counts_warm_up_rounds_as_the_authors_do(pre_rounds):
    """Random curves of 300 rounds, supervised alone for the first `pre_rounds`."""
    random, found, expected = np.random.default_rng(pre_rounds), [], []
    settings = options('code', share=5000 / 130_000, pre_rounds=pre_rounds)
    rounds = np.arange(300)
    lr = 0.005 + 0.0075 * (1 + np.cos(np.pi * rounds / 1000))
    for _ in range(100):
        speed_x, speed_u, noise = random.uniform(20, 400), random.uniform(20, 400), random.uniform(0, 0.05)
        loss_x, loss_u = (
            random.uniform(1, 5) * np.exp(-rounds / speed) + noise * random.normal(size=300)
            for speed in (speed_x, speed_u)
        )
        warming_up = rounds < pre_rounds
        expected.append(authors_k_s(loss_x, np.where(warming_up, 0.0, loss_u), lr, 5000 / 130_000))
        measured = np.where(warming_up, np.nan, loss_u)
        found.append(run(settings, 300, loss_x.__getitem__, measured.__getitem__, lr.__getitem__)[1:])
    assert found == expected
    assert len({tuple(one) for one in expected}) > 3  # the curves lead to different K_s


def test_every_round_from_the_horizon_on():
    literal = options('paper', share=0.02, check_every=1, k_u=10)
    assert changes(run(literal, 104)) == [66, 44, 29, 19, 12]
    assert run(literal, 99)[-1] == 100


@pytest.mark.parametrize('rule', ['paper', 'code'])
def test_a_beginning_below_the_minimum_is_raised_to_it(rule):
    """Eq. 10 as it stands: K_min = 8 x 0.04 x 50 = 16."""
    assert changes(run(options(rule, share=0.04, k_s=10), 100)) == [16]


def test_what_is_whole_is_not_rounded_down():
    """K_min = 8 x 7,250 / 50,000 x 50 = 58; 33 / 1.1 = 30; a share of 0.8 labeled leaves 4 of 20."""
    assert frequency.next_k_s(58, options('paper', share=7250 / 50000), 0.5) == 58
    assert frequency.next_k_s(33, options('paper', share=0.0, alpha=1.1), 0.5) == 30
    assert frequency.next_k_s(5, options('coverage', k_s=20), np.float32(0.8)) == 4


def test_k_s_never_falls_below_one():
    every_round = {'share': 0.0, 'period': 1, 'horizon': 2, 'check_every': 1}
    assert changes(run(options('paper', **every_round), 30))[-1] == 1
    assert changes(run(options('code', **every_round, alpha=4.0), 30)) == [25, 6, 2, 1]  # 1 / 4 is nearest to 0


def test_k_s_by_coverage_has_its_own_floor():
    """By hand: 20 / 1.5 = 13; 13 / 1.5 = 8; floors of 20 x 0.63 = 12, and of 20 where no client. No beta is in it."""
    settings = options('coverage', k_s=20, beta=1e9, period=1, horizon=2, check_every=2)
    assert run(settings, 10, mask=lambda h: [0.5, 0.9, 0.37, np.nan, 0.99][h // 2])[::2] == [20, 13, 8, 12, 20, 13]


@pytest.mark.parametrize(
    ('changes', 'images'),
    [({}, 1437), ({'data.num_unlabeled': 600}, 40 + 600), ({'data.num_validation': 100}, 1437 - 100)],
)
def test_the_share_of_labels_is_of_the_images_in_use(changes, images):
    """40 of the 1,437 training images of the digits are labeled."""
    config = config_lib.resolve(get_config('digits', {'seed': 0, 'data.num_labeled': 40, **changes}))
    (trial,) = experiment.build_trials([config])
    assert trial.frequency.labeled_share == 40 / images
