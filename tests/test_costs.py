"""Bytes of a round against numbers worked out by hand, and the line that mistakes in prices get."""

import types

import numpy as np
import pytest

from configs import cifar10, stl10
from semisfl_jax import config as config_lib
from semisfl_jax import costs
from semisfl_jax.core.errors import UserError
from semisfl_jax.costs import CostContext, price_round
from semisfl_jax.costs.prices import ModelSpec, measure
from semisfl_jax.costs.rounds import drop
from tests import runs
from tests.prices import CONFIGS, digits, everybody, model_of, paper_model, price, small

MIB, GIB = 2**20, 2**30


# Parameters of the bottom, BatchNorm's buffers, numbers in a feature, B: of the authors' code
BOTTOMS = {
    'svhn': (53_696, 0, 1_600, 64),
    'cifar10': (2_251_584, 0, 4_096, 64),
    'stl10': (9_410_880, 5_888, 4_608, 32),
    'image100': (14_723_136, 8_448, 12_800, 64),
}
PAPER = {  # by the formulas in docs/costs.md: MiB down and up of a client, GiB of ten
    'svhn': (19.9, 39.3, 0.578),
    'cifar10': (67.2, 108.6, 1.716),
    'stl10': (100.0, 92.2, 1.876),
    'image100': (268.6, 368.7, 6.224),
}
FULL_MODEL = {
    'svhn': 0.065,
    'cifar10': 2.671,
    'stl10': 3.362,
    'image100': 6.285,
}  # GiB of ten clients, one down, one up


# --- bytes


@pytest.mark.parametrize('name', CONFIGS)
def test_bytes_of_the_papers_experiments(name):
    model = paper_model(name)
    cost = costs.price_round(model, 0, 100, everybody(model))
    parameters, buffers, features, batch = BOTTOMS[name]
    bottom, tensor = 4 * (parameters + buffers), 4 * 50 * batch * features
    assert cost.bytes_down == 10 * (2 * bottom + tensor)
    assert cost.bytes_up == 10 * (bottom + 2 * tensor)
    down, up, together = PAPER[name]
    assert cost.bytes_down / 10 / MIB == pytest.approx(down, abs=0.05)
    assert cost.bytes_up / 10 / MIB == pytest.approx(up, abs=0.05)
    assert (cost.bytes_down + cost.bytes_up) / GIB == pytest.approx(together, abs=0.0005)


def test_106_rounds_of_cifar10_cost_what_the_paper_says():
    model, total = paper_model('cifar10'), costs.RoundCost()
    for index in range(106):
        total = costs.add(total, costs.price_round(model, index, 100, everybody(model)))
    assert (total.bytes_up + total.bytes_down) / GIB == pytest.approx(181.95, rel=0.01)


@pytest.mark.parametrize('name', CONFIGS)
def test_bytes_of_whole_models(name):
    model = paper_model(name, 'fedavg')
    cost = costs.price_round(model, 0, 100, everybody(model))
    assert cost.bytes_up == cost.bytes_down
    assert (cost.bytes_up + cost.bytes_down) / GIB == pytest.approx(FULL_MODEL[name], abs=0.0006)
    assert costs.price_round(paper_model(name, 'fedprox'), 0, 100, everybody(model)) == cost


@pytest.mark.parametrize(
    ('name', 'two', 'three'), [('cifar10', 2.480, 3.721), ('stl10', 9.922, 14.883), ('image100', 10.31, 15.47)]
)
def test_bytes_at_the_sizes_that_the_paper_quotes(name, two, three):
    paper = {'cost.bill_model_size': 'paper'}
    one = paper_model(name, 'fedavg', **paper)
    cost = costs.price_round(one, 0, 0, everybody(one))
    assert (cost.bytes_up + cost.bytes_down) / GIB == pytest.approx(two, rel=1e-3)
    both = paper_model(name, 'fedswitch', **paper, **{'fedswitch.mode': 'teacher'})
    cost = costs.price_round(both, 0, 0, everybody(both))
    assert (cost.bytes_up + cost.bytes_down) / GIB == pytest.approx(three, rel=1e-3)
    split, actual = paper_model(name, **paper), paper_model(name)
    assert costs.price_round(split, 0, 0, everybody(split)) == costs.price_round(
        actual, 0, 0, everybody(split)
    )  # bottoms are as are


def test_fedswitch_sends_the_teacher_to_whom_it_labels_for():
    model_bytes = 4 * 35_855_178
    expected = {'student': 10, 'teacher': 20}
    for mode, models in expected.items():
        model = paper_model('cifar10', 'fedswitch', **{'fedswitch.mode': mode})
        assert costs.price_round(model, 0, 100, everybody(model))[:2] == (10 * model_bytes, models * model_bytes)
    model = paper_model('cifar10', 'fedswitch')
    cost = costs.price_round(model, 0, 100, everybody(model), {'student_labels': np.float32(0.7)})
    assert cost[:2] == (10 * model_bytes + 10 * 4, 13 * model_bytes)  # three of ten ask, ten send a number
    assert costs.price_round(model, 0, 100, everybody(model))[1] == 20 * model_bytes  # before the round: at the most


def test_supervised_only_and_rounds_without_clients_send_nothing():
    model = paper_model('cifar10', 'supervised_only')
    for cost_model, clients in ((model, None), (paper_model('cifar10'), None)):
        up, down, seconds = costs.price_round(cost_model, 0, 100, clients)
        assert (up, down) == (0, 0)
        assert seconds > 0


def test_labels_travel_with_their_batches():
    config = stl10.get_config()
    config.data.client_labels = 1000
    model = model_of(config)
    assert model.hparams.labeled_rows == 4  # 4 + 28
    clients = everybody(model)
    without = costs.price_round(model, 0, 100, clients)
    with_labels = costs.price_round(model, 0, 100, clients._replace(labels=np.arange(10) < 6))
    assert with_labels.bytes_up - without.bytes_up == 6 * 50 * 4 * 4
    assert with_labels.bytes_down == without.bytes_down


@pytest.mark.parametrize('version', ['v1', 'v2'])
def test_splitfed(version):
    """One bottom each way; features and labels up, a gradient down."""
    pieces = measure(ModelSpec('small_cnn', 10, (8, 8, 1), None, 'mlp', 128))
    h = types.SimpleNamespace(batch_size=16, options=types.SimpleNamespace(version=version))
    cost = price('splitfed', CostContext(pieces, pieces.whole_bytes, h, 5))
    bottom, features = 4 * (9 * 16 + 16 + 9 * 16 * 32 + 32), 4 * 16 * 2 * 2 * 32
    assert (cost.download, cost.upload) == (bottom, bottom)
    assert (cost.step_upload, cost.step_download) == (features + 4 * 16, features)
    assert cost.order == {'v1': 'synchronized', 'v2': 'sequential'}[version]
    h = model_of(runs.config(algorithm='splitfed', data__client_labels=-1, k_s=0)).hparams
    context = CostContext(pieces, pieces.whole_bytes, h, 5)
    assert costs.supervised_work(context) == 0  # no labels at the server


RESNET9 = 4 * (6_575_370 - 2 * 9 * 64)  # bytes of parameters, with one channel in place of three
STATISTICS = 4 * 2 * (64 + 128 + 2 * 128 + 256 + 512 + 2 * 512)


@pytest.mark.parametrize('labeled_rows', [0, 4])
def test_fedmatch(labeled_rows):
    """sigma and psi down, psi up (both with labels at the clients), two psi of helpers in every tenth round."""
    settings = {'helpers': 2, 'helper_every': 10, 'helpers_persist': False, 'delta_threshold': 0.0}
    context = small(options=settings, labeled_rows=labeled_rows)
    for index, helpers in ((0, 0), (8, 0), (9, 2), (19, 2)):
        cost = price('fedmatch', context._replace(index=index))
        assert cost.download == (2 + helpers) * RESNET9 + STATISTICS
        assert cost.upload == (2 if labeled_rows else 1) * RESNET9 + STATISTICS
    few = context._replace(index=9, metrics={'helpers_used': np.float32(0.7)})  # three of ten know two, one knows one
    assert 10 * price('fedmatch', few).download == pytest.approx((20 + 7) * RESNET9 + 10 * STATISTICS, rel=1e-12)


@pytest.mark.parametrize('labeled_rows', [0, 4])
def test_fedmatch_sends_what_changed(labeled_rows):
    """A quarter of psi and a half of sigma; statistics whole. Downloads, and what it can cost at most, as ever."""
    settings = {'helpers': 2, 'helper_every': 10, 'helpers_persist': False, 'delta_threshold': 1e-5}
    context = small(options=settings, labeled_rows=labeled_rows)
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


def test_semifl():
    """The model down, its parameters up from those that do not sit out; statistics by the images of all clients."""
    at_server = small(options={'batch_norm_data': 'server'}, local={'epochs': 0})
    cost = price('semifl', at_server)
    assert (cost.download, cost.upload, cost.setup_upload) == (RESNET9 + STATISTICS, RESNET9, 0)
    cost = price('semifl', at_server._replace(metrics={'clients_sitting_out': np.float32(0.3), 'client_steps': 7.0}))
    assert 10 * cost.upload == pytest.approx(7 * RESNET9, rel=1e-12)
    metrics = {'clients_sitting_out': np.float32(0), 'client_steps': np.float32(2)}
    every = at_server._replace(steps=np.array([8, 8]), images=np.array([100, 100]))
    planned, made = (price('semifl', context) for context in (every, every._replace(metrics=metrics, survivors=2)))
    np.testing.assert_allclose(made.step_work * 8, planned.step_work * 2, rtol=1e-12)  # 2 of 8 iterations
    cost = price('semifl', small(options={'batch_norm_data': 'all'}, local={'epochs': 0}))
    assert (cost.download, cost.setup_upload) == (RESNET9 + STATISTICS, STATISTICS)
    assert (cost.inactive_download, cost.inactive_upload) == (RESNET9, STATISTICS)


def test_semifl_in_epochs():
    """Five passes over confident images, each in a strong view and in a mixture, however many batches they make."""
    context = small(options={'batch_norm_data': 'server'}, local={'epochs': 5}, batch_size=10)
    context = context._replace(images=np.array([100, 42]), steps=np.array([50, 21]))  # steps: full batches of 10
    image = 2 * context.pieces.whole_work.train
    before = price('semifl', context)  # all may be confident
    np.testing.assert_allclose(before.step_work * context.steps, [500 * image, 210 * image], rtol=1e-12)
    # client 0 has 30 confident images, client 1 two: 5 (3 + 1) steps in all, 5 (30 + 2) images
    metrics = {'clients_sitting_out': 0.0, 'client_steps': 10.0, 'client_images': 80.0}
    after = price('semifl', context._replace(metrics=metrics, survivors=2))
    np.testing.assert_allclose(np.sum(after.step_work * context.steps), 5 * 32 * image, rtol=1e-12)
    # client 1 sits out: a mean over client 0 alone
    metrics = {'clients_sitting_out': 0.5, 'client_steps': 15.0, 'client_images': 150.0}
    after = price('semifl', context._replace(metrics=metrics, survivors=2))
    np.testing.assert_allclose(np.sum(after.step_work * context.steps), 5 * 30 * image, rtol=1e-12)


def test_semifl_reads_the_images_of_all_clients_in_every_round():
    """ResNet-9 has BatchNorm over 64 + 128 + 2 x 128 + 256 + 512 + 2 x 512 channels: a mean and a variance of each. All
    ten send them, also without a cohort, and if a client of the cohort failed before it started."""
    model = digits(algorithm='semifl', model__name='resnet9')
    statistics = 4 * 2 * 2240
    assert model.pieces.statistics == statistics
    parameters = model.whole_bytes - statistics
    alone = price_round(model, 0, 20, None)
    assert (alone.bytes_up, alone.bytes_down) == (10 * statistics, 10 * parameters)
    clients = drop(everybody(model), np.array([0, *[np.inf] * 4]), never=True)
    assert clients.started.tolist() == [False, *[True] * 4]
    lost = price_round(model, 0, 20, clients)
    assert lost.bytes_up == 10 * statistics + 4 * parameters  # before the round, all may send an update
    assert lost.bytes_down == 4 * model.whole_bytes + 6 * parameters


# --- configuration


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'cost.client_out': (8.0, 0.8)}, 'client_out=.* must be two bandwidths'),
        ({'cost.client_in': (0.0, 1.0)}, 'client_in=.* two bandwidths above 0'),
        ({'cost.client_in': (1.0, 2.0, 3.0)}, 'client_in=.* two bandwidths'),
        ({'cost.devices': ('phone',)}, "'phone', which is unknown"),
        ({'cost.devices': ()}, 'name one or more'),
        ({'cost.bill_model_size': 'paper', 'model.name': 'resnet9'}, 'not of resnet9'),
    ],
)
def test_mistakes(changes, message):
    config = cifar10.get_config()
    config.update_from_flattened_dict(changes)
    with pytest.raises(UserError, match=message):
        config_lib.check(config)
