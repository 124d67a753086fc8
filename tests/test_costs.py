"""Bytes, operations and simulated seconds against numbers worked out by hand."""

import dataclasses
import types

import numpy as np
import pytest

from configs import cifar10, image100, stl10, svhn
from semisfl_jax import algorithms, costs, data
from semisfl_jax import config as config_lib
from semisfl_jax.costs import CostContext, network
from semisfl_jax.costs.clients import whole
from semisfl_jax.costs.pieces import measure
from semisfl_jax.errors import UserError
from tests import runs

MIB, GIB = 2**20, 2**30
CONFIGS = {'svhn': svhn, 'cifar10': cifar10, 'stl10': stl10, 'image100': image100}
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


def model_of(config, **options):
    """The cost model of a configuration."""
    config_lib.check(config)
    config = config_lib.resolve(config)
    shape, classes = data.shape(config.data)
    built = costs.build(config, algorithms.get(config.algorithm), classes, shape, config_lib.hparams(config))
    return dataclasses.replace(built, options=dataclasses.replace(built.options, **options))


def paper_model(name, algorithm='semisfl', **changes):
    config = CONFIGS[name].get_config()
    config.algorithm = algorithm
    config.update_from_flattened_dict(changes)
    return model_of(config)


def price(name, context):
    return algorithms.get(name).price(context)


def everybody(model, ids=None):
    ids = np.arange(model.num_active) if ids is None else np.asarray(ids)
    return whole(ids, np.full(ids.shape, 9), np.full(ids.shape, model.hparams.k_u), np.zeros(ids.shape, bool))


# --- bytes


@pytest.mark.parametrize('name', CONFIGS)
def test_bytes_of_the_papers_experiments(name):
    model = paper_model(name)
    bill = costs.bill(model, 0, 100, everybody(model))
    parameters, buffers, features, batch = BOTTOMS[name]
    bottom, tensor = 4 * (parameters + buffers), 4 * 50 * batch * features
    assert bill.bytes_down == 10 * (2 * bottom + tensor)
    assert bill.bytes_up == 10 * (bottom + 2 * tensor)
    down, up, together = PAPER[name]
    assert bill.bytes_down / 10 / MIB == pytest.approx(down, abs=0.05)
    assert bill.bytes_up / 10 / MIB == pytest.approx(up, abs=0.05)
    assert (bill.bytes_down + bill.bytes_up) / GIB == pytest.approx(together, abs=0.0005)


def test_106_rounds_of_cifar10_cost_what_the_paper_says():
    model, total = paper_model('cifar10'), costs.Bill()
    for index in range(106):
        total = costs.add(total, costs.bill(model, index, 100, everybody(model)))
    assert (total.bytes_up + total.bytes_down) / GIB == pytest.approx(181.95, rel=0.01)


@pytest.mark.parametrize('name', CONFIGS)
def test_bytes_of_whole_models(name):
    model = paper_model(name, 'fedavg')
    bill = costs.bill(model, 0, 100, everybody(model))
    assert bill.bytes_up == bill.bytes_down
    assert (bill.bytes_up + bill.bytes_down) / GIB == pytest.approx(FULL_MODEL[name], abs=0.0006)
    assert costs.bill(paper_model(name, 'fedprox'), 0, 100, everybody(model)) == bill


@pytest.mark.parametrize(
    ('name', 'two', 'three'), [('cifar10', 2.480, 3.721), ('stl10', 9.922, 14.883), ('image100', 10.31, 15.47)]
)
def test_bytes_at_the_sizes_that_the_paper_quotes(name, two, three):
    paper = {'cost.bill_model_size': 'paper'}
    one = paper_model(name, 'fedavg', **paper)
    bill = costs.bill(one, 0, 0, everybody(one))
    assert (bill.bytes_up + bill.bytes_down) / GIB == pytest.approx(two, rel=1e-3)
    both = paper_model(name, 'fedswitch', **paper, **{'fedswitch.mode': 'teacher'})
    bill = costs.bill(both, 0, 0, everybody(both))
    assert (bill.bytes_up + bill.bytes_down) / GIB == pytest.approx(three, rel=1e-3)
    split, actual = paper_model(name, **paper), paper_model(name)
    assert costs.bill(split, 0, 0, everybody(split)) == costs.bill(actual, 0, 0, everybody(split))  # bottoms are as are


def test_fedswitch_sends_the_teacher_to_whom_it_labels_for():
    model_bytes = 4 * 35_855_178
    expected = {'student': 10, 'teacher': 20}
    for mode, models in expected.items():
        model = paper_model('cifar10', 'fedswitch', **{'fedswitch.mode': mode})
        assert costs.bill(model, 0, 100, everybody(model))[:2] == (10 * model_bytes, models * model_bytes)
    model = paper_model('cifar10', 'fedswitch')
    bill = costs.bill(model, 0, 100, everybody(model), {'student_labels': np.float32(0.7)})
    assert bill[:2] == (10 * model_bytes + 10 * 4, 13 * model_bytes)  # three of ten ask, ten send a number
    assert costs.bill(model, 0, 100, everybody(model))[1] == 20 * model_bytes  # before the round: at the most


def test_supervised_only_and_rounds_without_clients_send_nothing():
    model = paper_model('cifar10', 'supervised_only')
    for cost_model, clients in ((model, None), (paper_model('cifar10'), None)):
        up, down, seconds = costs.bill(cost_model, 0, 100, clients)
        assert (up, down) == (0, 0)
        assert seconds > 0


def test_labels_travel_with_their_batches():
    config = stl10.get_config()
    config.data.client_labels = 1000
    model = model_of(config)
    assert model.hparams.labeled_rows == 4  # 4 + 28
    clients = everybody(model)
    without = costs.bill(model, 0, 100, clients)
    with_labels = costs.bill(model, 0, 100, clients._replace(labels=np.arange(10) < 6))
    assert with_labels.bytes_up - without.bytes_up == 6 * 50 * 4 * 4
    assert with_labels.bytes_down == without.bytes_down


@pytest.mark.parametrize('version', ['v1', 'v2'])
def test_splitfed(version):
    """One bottom each way; features and labels up, a gradient down."""
    pieces = measure('small_cnn', 10, (8, 8, 1), None, 'mlp', 128)
    h = types.SimpleNamespace(batch_size=16, options=types.SimpleNamespace(version=version))
    cost = price('splitfed', CostContext(pieces, pieces.whole, h, 5))
    bottom, features = 4 * (9 * 16 + 16 + 9 * 16 * 32 + 32), 4 * 16 * 2 * 2 * 32
    assert (cost.download, cost.upload) == (bottom, bottom)
    assert (cost.step_upload, cost.step_download) == (features + 4 * 16, features)
    assert cost.order == {'v1': 'synchronized', 'v2': 'sequential'}[version]
    context = CostContext(
        pieces, pieces.whole, model_of(runs.config(algorithm='splitfed', data__client_labels=-1, k_s=0)).hparams, 5
    )
    assert costs.supervised_work(context) == 0  # no labels at the server


def small(**options):
    """What prices depend on, of a small model with settings of a method that are not those of SemiSFL."""
    pieces = measure('resnet9', 10, (8, 8, 1), None, 'none', 128)
    groups = {name: types.SimpleNamespace(**values) for name, values in options.items() if isinstance(values, dict)}
    h = types.SimpleNamespace(**{'batch_size': 16, 'labeled_rows': 0, **options, **groups})
    return CostContext(pieces, pieces.whole, h, 10, images=np.full(10, 9), steps=np.full(10, 7), survivors=10)


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
        bills.append(costs.bill(model, 0, 8, everybody(model), metrics))
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


def test_fedswitch_sl_sends_what_semisfl_sends():
    pieces = measure('small_cnn', 10, (8, 8, 1), None, 'mlp', 128)
    context = CostContext(pieces, pieces.whole, paper_model('cifar10').hparams, 10)
    one, other = (price(name, context) for name in ('semisfl', 'fedswitch_sl'))
    assert one._replace(server_work=0) == other._replace(server_work=0)
    assert one.server_work > other.server_work  # no projection head, no clustering


# --- operations and memory


def conv(side, kernel, inputs, outputs, padded):
    """Multiplications and additions of a convolution, the kernel's place off the image left out."""
    hits = (3 * side - 2) ** 2 if padded else side**2 * kernel**2
    return 2 * hits * inputs * outputs


ALEXNET = [
    conv(32, 3, 3, 64, True),
    conv(16, 3, 64, 192, True),
    conv(8, 3, 192, 384, True),
    conv(8, 3, 384, 256, True),
    conv(8, 3, 256, 256, True),
    2 * 4096 * 4096,
    2 * 4096 * 4096,
]
CNN = [conv(28, 5, 3, 32, False), conv(10, 5, 32, 64, False), 2 * 1600 * 512]
# Numbers that leave each layer, and whether it pools: bias and ReLU on each, three comparisons for a window.
ALEXNET_OUT = [
    (16**2 * 64, 1),
    (8**2 * 192, 1),
    (8**2 * 384, 0),
    (8**2 * 256, 0),
    (4**2 * 256, 1),
    (4096, 0),
    (4096, 0),
]
CNN_OUT = [(14**2 * 32, 1), (5**2 * 64, 1), (512, 0)]


@pytest.mark.parametrize(
    ('name', 'products', 'out', 'cuts'),
    [('alexnet', ALEXNET, ALEXNET_OUT, (1, 5, 7)), ('cnn', CNN, CNN_OUT, (1, 2, 3))],
)
def test_operations_of_a_client_by_hand(name, products, out, cuts):
    for cut in cuts:
        pieces = measure(name, 10, (32, 32, 3), cut, 'linear', 16)
        forward = sum(products[:cut]) + sum((2 + 3 * pools) * size for size, pools in out[:cut])
        assert pieces.bottom_work.forward == pytest.approx(forward, rel=1e-6)
        # Backward: the gradient of each kernel and of each input but the images, as many products as forward each.
        train = 3 * sum(products[:cut]) - products[0]
        assert train <= pieces.bottom_work.train <= train + 25 * sum(size for size, _ in out[:cut])
        assert pieces.feature_size == out[cut - 1][0]


def test_operations_of_the_top_and_the_head():
    pieces = measure('cnn', 10, (32, 32, 3), 2, 'mlp', 128)
    products = 2 * (1600 * 512 + 512 * 10)
    assert products <= pieces.top_work.forward <= 1.001 * products
    assert 3 * products <= pieces.top_work.train <= 1.01 * 3 * products  # with the gradient of the features
    head = 2 * (1600 * 1600 + 1600 * 128)
    assert head <= pieces.head_work.forward <= 1.01 * head
    assert 2 * 128 <= pieces.pair_work.forward <= 2 * 128 + 20
    assert 4 * 128 <= pieces.pair_work.train <= 4 * 128 + 40


def test_activations_are_those_of_the_convolutions():
    """What the backward pass needs at least: images, the input of the second layer, who won each pool."""
    pieces = measure('cnn', 10, (32, 32, 3), 2, 'mlp', 128)
    needed = 4 * 32 * 32 * 3 + 4 * 14 * 14 * 32 + 14 * 14 * 32 + 5 * 5 * 64
    assert needed <= pieces.bottom_activations <= 3 * needed


# --- seconds


def twin_seconds(model, k_s, clients, index):
    """Iteration by iteration, client by client."""
    pieces, h, options = model.pieces, model.hparams, model.options
    unit = {'Mbps': 125_000.0, 'MBps': 1e6}[options.bandwidth_unit]
    links = network.draw_links(options, model.seed, index, clients.ids, model.num_clients)
    speeds = network.client_speeds(options, model.seed, model.num_clients)
    for bandwidths, low, high in ((links.up, *options.client_out), (links.down, *options.client_in)):
        assert np.all((bandwidths >= unit * low) & (bandwidths <= unit * high))
    server = options.efficiency * options.server_teraflops * 1e12
    b, features = h.batch_size, 4 * h.batch_size * pieces.feature_size
    row = pieces.bottom_work.train + pieces.top_work.train + pieces.bottom_work.forward
    clustering = pieces.head_work.train + pieces.head_work.forward
    row += clustering + (h.server_batch_size + h.queue_size) * pieces.pair_work.train
    seconds = k_s * h.server_batch_size * row / server
    started = [n for n in range(len(clients.ids)) if clients.started[n]]
    seconds += max((2 * pieces.bottom / links.down[n] for n in started), default=0.0)
    row = pieces.top_work.train + pieces.top_work.forward + clustering
    row += (model.num_active * b + 2 * h.queue_size) * pieces.pair_work.train
    for t in range(h.k_u):
        active = [n for n in started if clients.made[n] > t]
        client_seconds = [
            b * (pieces.bottom_work.train + pieces.bottom_work.forward) / speeds[clients.ids[n]]
            + 2 * features / links.up[n]
            + features / links.down[n]
            for n in active
        ]
        seconds += max(client_seconds, default=0.0) + len(active) * b * row / server
    return seconds + max((pieces.bottom / links.up[n] for n in started if not clients.failed[n]), default=0.0)


def digits(**changes):
    return model_of(runs.config(k_u=7, federation__num_active=5, **changes))


@pytest.mark.parametrize('unit', ['Mbps', 'MBps'])
def test_seconds_of_a_split_round(unit):
    model = digits(cost__bandwidth_unit=unit)
    clients = everybody(model, ids=[1, 3, 4, 6, 9])
    made = np.array([np.inf, 3, np.inf, 0, 5])
    for participants in (
        clients,
        costs.drop(clients, made),
        costs.drop(clients, made, never=np.arange(5) == 1),
        costs.drop(clients, np.zeros(5), never=True),
    ):
        for index in range(3):
            expected = twin_seconds(model, 20, participants, index)
            assert costs.bill(model, index, 20, participants).simulated_seconds == pytest.approx(expected, rel=1e-12)


def test_transfers_of_cifar10_at_the_papers_bandwidth():
    """About 245 s in a round at the middle of the ranges of Section V-C in Mbps; an eighth of it in MB/s."""

    def seconds(factor, unit='Mbps'):
        both = {'client_out': (4.4 * factor,) * 2, 'client_in': (15.0 * factor,) * 2}
        model = paper_model('cifar10')
        model = dataclasses.replace(model, options=dataclasses.replace(model.options, bandwidth_unit=unit, **both))
        return costs.bill(model, 0, 100, everybody(model)).simulated_seconds

    computed = seconds(1e9)
    assert seconds(1) - computed == pytest.approx(245, abs=1)
    assert seconds(1, 'MBps') - computed == pytest.approx(245 / 8, abs=0.2)


def test_seconds_of_a_round_on_whole_models():
    model = digits(algorithm='fedavg')
    clients = costs.drop(everybody(model, ids=[1, 3, 4, 6, 9]), np.array([np.inf, 3, np.inf, np.inf, np.inf]))
    links = network.draw_links(model.options, model.seed, 4, clients.ids, model.num_clients)
    speeds = network.client_speeds(model.options, model.seed, model.num_clients)[clients.ids]
    work = model.hparams.batch_size * (model.pieces.whole_work.train + model.pieces.whole_work.forward)
    size = model.pieces.whole
    expected = []
    for n in range(5):
        steps = 3 if n == 1 else 7
        expected.append(size / links.down[n] + steps * work / speeds[n] + (0 if n == 1 else size / links.up[n]))
    assert costs.bill(model, 4, 0, clients).simulated_seconds == pytest.approx(max(expected), rel=1e-12)


def test_a_server_model_that_takes_turns_takes_the_sum():
    model = digits()
    clients = everybody(model, ids=[1, 3, 4, 6, 9])
    paces = costs.rounds.Paces(*(np.arange(1.0, 6.0) * scale for scale in (1, 10, 100)))
    seconds = costs.rounds._client_seconds('sequential', clients, paces, paces.end, 2.0)
    assert seconds == 5 + 7 * (10 + 20 + 30 + 40 + 50 + 5 * 2.0) + 500


def test_links_depend_on_seed_round_and_client_alone():
    options = network.CostOptions()
    all_ = network.draw_links(options, 3, 8, np.arange(20), 20)
    some = network.draw_links(options, 3, 8, np.array([4, 17]), 20)
    np.testing.assert_array_equal(some.up, all_.up[[4, 17]])
    for other in (
        network.draw_links(options, 4, 8, np.arange(20), 20),
        network.draw_links(options, 3, 9, np.arange(20), 20),
    ):
        assert not np.any(other.up == all_.up)
        assert not np.any(other.down == all_.down)


def test_every_class_of_device_has_its_share():
    options = network.CostOptions(devices=('jetson_nano', 'jetson_tx2', 'jetson_agx_xavier'))
    speeds, counts = np.unique(network.client_speeds(options, 0, 31), return_counts=True)
    np.testing.assert_allclose(speeds, 0.3 * np.array([0.2359296e12, 0.6656e12, 1.410048e12]))
    assert sorted(counts) == [10, 10, 11]


def test_what_was_sent_before_a_failure_is_billed():
    model = digits()
    clients = everybody(model, ids=[1, 3, 4, 6, 9])
    clients = costs.drop(clients, np.array([np.inf, 3, np.inf, 0, 0]), never=np.array([0, 0, 0, 0, 1], bool))
    assert list(clients.survived) == [True, False, True, False, False]
    bottom, features = 19_200, 4 * 4 * 128
    bill = costs.bill(model, 0, 8, clients)
    assert bill.bytes_down == 4 * 2 * bottom + (7 + 3 + 7) * features
    assert bill.bytes_up == 2 * bottom + (7 + 3 + 7) * 2 * features
    again = costs.drop(clients, np.array([np.inf, 5, 2, np.inf, 1]))  # nobody comes to life
    assert list(again.made) == [7, 3, 2, 0, 0]
    assert list(again.survived) == [True, False, False, False, False]


# --- configuration


@pytest.mark.parametrize(
    ('changes', 'message'),
    [
        ({'cost.client_out': (8.0, 0.8)}, 'a lowest and a highest bandwidth'),
        ({'cost.client_in': (0.0, 1.0)}, 'both above 0'),
        ({'cost.client_in': (1.0, 2.0, 3.0)}, 'a lowest and a highest'),
        ({'cost.devices': ('phone',)}, "'phone', which is unknown"),
        ({'cost.devices': ()}, 'name one or more'),
        ({'cost.efficiency': 1.5}, 'a share of the peak'),
        ({'cost.server_teraflops': 0.0}, 'above 0'),
        ({'cost.bandwidth_unit': 'Gbps'}, 'use one of Mbps, MBps'),
        ({'cost.bill_model_size': 'paper', 'model.name': 'resnet9'}, 'not of resnet9'),
    ],
)
def test_mistakes(changes, message):
    config = cifar10.get_config()
    config.update_from_flattened_dict(changes)
    with pytest.raises(UserError, match=message):
        config_lib.check(config)


def test_every_method_has_a_price():
    assert all(method.price for method in algorithms.METHODS.values())
