"""Bytes and operations of the methods against numbers worked out by hand."""

import types

import numpy as np
import pytest

from semisfl_jax import algorithms, costs, data
from semisfl_jax import config as config_lib
from semisfl_jax.config import failures, get_config
from semisfl_jax.costs import CostContext, price_round, prices
from semisfl_jax.costs.prices import ModelSpec, measure
from semisfl_jax.costs.rounds import drop, no_failures
from tests import runs, toy_scenes
from tests.prices import digits, everybody, model_of, paper_model, price, small


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
    for mode, bottoms in {'student': 1, 'teacher': 2, 'switch': 2}.items():
        model = paper_model('cifar10', 'fedswitch_sl', **{'fedswitch.mode': mode})
        gradients = 50 * 64 * 4 * 4096
        down = costs.price_round(model, 0, 100, everybody(model))[1]
        assert down == 10 * (bottoms * model.pieces.bottom + gradients)


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
    model = digits(algorithm='semifl', model__name='resnet9', data__client_labels=0)
    failed = drop(everybody(model), np.array([0, *[np.inf] * 4]), never=True)  # one of five, before the round
    bill = price_round(model, 0, 4, failed)
    assert bill.bytes_down == 4 * (RESNET9 + STATISTICS) + (10 - 4) * RESNET9
    assert bill.bytes_up == 10 * STATISTICS + 4 * RESNET9  # before the round, all may send
    alone = price_round(model, 0, 20, None)
    assert (alone.bytes_up, alone.bytes_down) == (10 * STATISTICS, 10 * RESNET9)


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


# --- Fed-SHVR: the MLP with 5,000 units

MODEL = 4 * 3_975_010  # bytes of the MLP with 5,000 units: 784 * 5000 + 5000 + 5000 * 10 + 10 parameters


def bill(model, ids):
    count = np.full(len(ids), 9)
    return price_round(model, 0, 0, no_failures(np.array(ids), count, count, count > 0))


def shvr_model(algorithm, **changes):
    """The cost model of Fed-SHVR's experiment on MNIST."""
    changes = {'setting': 'official', 'model.name': 'mlp5000', 'data.num_labeled': 600, **changes}
    config = config_lib.resolve(get_config('mnist', {'algorithm': algorithm, **changes}))
    shape, classes = data.shape(config.data)
    method, may_fail = algorithms.get(algorithm), failures.can_happen(config.failures)
    return costs.build(config, method, classes, shape, config_lib.hparams(config), may_fail)


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
def test_bytes(algorithm, changes, down):
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


def test_pseudo_labels_of_the_received_model_are_made_once_too():
    semi = shvr_model('fedavg', **{'local.objective': 'pseudo_label'})
    context = costs.CostContext(semi.pieces, semi.whole_bytes, semi.hparams, 10, unlabeled=500, steps=7, labels=True)
    cost = algorithms.get('fedavg').price(context)
    assert cost.setup_work == 500 * semi.pieces.whole_work.forward
    assert cost.step_work == semi.hparams.batch_size * semi.pieces.whole_work.train
    without = algorithms.get('fedavg').price(context._replace(labels=False))  # 32 of 64 rows stand empty
    assert without.step_work == 32 * semi.pieces.whole_work.train


# --- M-Fed: DeepLabV3+ on ResNet-18

# Parameters: ResNet-18 without classifier; DeepLabV3+ on its 512 channels, and 256 weights and a bias for each output
ENCODER, DECODER, OUTPUT = 11_176_512, 5_426_272, 257
# Channels of BatchNorm, each with a running mean and variance. Encoder: the stem, four stages of two blocks of two
# convolutions, three of them with a shortcut. Decoder: five branches of ASPP and their projection, each of 256, the
# low-level map's 48, two convolutions of 256
OF_ENCODER = 64 + 4 * (64 + 128 + 256 + 512) + (128 + 256 + 512)
OF_DECODER = (5 + 1) * 256 + 48 + 2 * 256
TASKS = {'semseg': 21, 'parts': 7, 'saliency': 1, 'edges': 1}  # outputs


def mfed_model(algorithm, names, **changes):
    """The cost model of PASCAL-Context's configuration."""
    clients = 5 * len(names)
    changes |= {'data.tasks': tuple(names), 'federation.num_clients': clients, 'federation.num_active': clients}
    config = config_lib.resolve(get_config('pascal_context', {'algorithm': algorithm, **changes}))
    outputs = tuple(TASKS[name] for name in names)
    return costs.build(config, algorithms.get(algorithm), 21, (64, 64, 3), config_lib.hparams(config), outputs=outputs)


def parameters(name):
    """Of the model of a task."""
    return ENCODER + DECODER + OUTPUT * TASKS[name]


DENSE_STATISTICS = 4 * 2 * (OF_ENCODER + OF_DECODER)  # bytes


@pytest.mark.slow
@pytest.mark.parametrize(
    ('algorithm', 'changes', 'models', 'encoders'),
    [
        ('m_fed', {}, 1, 1),
        ('m_fed', {'mfed.weight': 0.0}, 1, 0),  # without penalty, g stays at the server
        ('mfed_fl', {}, 1, 0),
        ('mfed_local', {}, 0, 0),
    ],
)
def test_bytes_of_a_client(algorithm, changes, models, encoders):
    """The model of the task with its statistics both ways, and g, of parameters alone, down."""
    found = bill(mfed_model(algorithm, ['semseg'], **changes), [0])
    model = 4 * parameters('semseg') + DENSE_STATISTICS
    assert found.bytes_down == models * model + encoders * 4 * ENCODER
    assert found.bytes_up == models * model


@pytest.mark.slow
def test_clients_pay_for_the_decoder_of_their_task():
    """Client n works on task n mod 4; clients 0 to 19 are five of each. Then clients 1 and 6 alone, of parts and
    saliency."""
    model = mfed_model('m_fed', TASKS)
    found = bill(model, range(20))
    of_all = 20 * (4 * (ENCODER + DECODER) + DENSE_STATISTICS) + 5 * 4 * OUTPUT * (21 + 7 + 1 + 1)
    assert (found.bytes_down, found.bytes_up) == (of_all + 20 * 4 * ENCODER, of_all)
    found = bill(model, [1, 6])
    assert found.bytes_up == 2 * (4 * (ENCODER + DECODER) + DENSE_STATISTICS) + 4 * OUTPUT * (7 + 1)


@pytest.mark.slow
def test_a_model_registered_anew_is_measured_anew(monkeypatch):
    """Under the name of another one, as in a notebook whose cell runs again: 3 * 6 + 6 + 6 * 6 + 6 parameters of two
    dense layers and 2 * 6 of a BatchNorm, in place of the 83,824 of scene_net's encoder."""
    spec = prices.DenseSpec('scene_net', 3, (16, 16, 3), 8)
    before = prices.measure(spec).bottom_parameters
    toy_scenes.small_model(monkeypatch)
    assert (before, prices.measure(spec).bottom_parameters) == (4 * 83_824, 4 * 78)
