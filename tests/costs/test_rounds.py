"""Bytes and simulated seconds of a round, operations and memory of a client against numbers worked out by hand."""

import dataclasses

import numpy as np
import pytest

from configs import stl10
from semisfl_jax import costs
from semisfl_jax.costs import rounds
from tests.helpers.marks import slow_but
from tests.helpers.prices import digits, everybody, model_of, paper_model

MIB, GIB = 2**20, 2**30
# Parameters of the bottom, BatchNorm's buffers, numbers in a feature, B: of the authors' code
BOTTOMS = {
    'svhn': (53_696, 0, 1_600, 64),
    'cifar10': (2_251_584, 0, 4_096, 64),
    'stl10': (9_410_880, 5_888, 4_608, 32),
    'image100': (14_723_136, 8_448, 12_800, 64),
}
PAPER = {  # by the formulas in docs/costs.md: MiB down and up of a client, GiB of ten; GiB of ten whole models each way
    'svhn': (19.9, 39.3, 0.578, 0.065),
    'cifar10': (67.2, 108.6, 1.716, 2.671),
    'stl10': (100.0, 92.2, 1.876, 3.362),
    'image100': (268.6, 368.7, 6.224, 6.285),
}


@pytest.mark.parametrize('name', slow_but(PAPER, 'svhn', 'cifar10'))
def test_bytes_of_the_papers_experiments(name):
    model = paper_model(name)
    cost = costs.price_round(model, 0, 100, everybody(model))
    parameters, buffers, features, batch = BOTTOMS[name]
    bottom, tensor = 4 * (parameters + buffers), 4 * 50 * batch * features
    assert cost.bytes_down == 10 * (2 * bottom + tensor)
    assert cost.bytes_up == 10 * (bottom + 2 * tensor)
    down, up, together, whole = PAPER[name]
    assert cost.bytes_down / 10 / MIB == pytest.approx(down, abs=0.05)
    assert cost.bytes_up / 10 / MIB == pytest.approx(up, abs=0.05)
    assert (cost.bytes_down + cost.bytes_up) / GIB == pytest.approx(together, abs=0.0005)
    model = paper_model(name, 'fedavg')
    cost = costs.price_round(model, 0, 100, everybody(model))
    assert cost.bytes_up == cost.bytes_down
    assert (cost.bytes_up + cost.bytes_down) / GIB == pytest.approx(whole, abs=0.0006)


def test_106_rounds_of_cifar10_cost_what_the_paper_says():
    model, total = paper_model('cifar10'), costs.RoundCost()
    for index in range(106):
        price = costs.price_round(model, index, 100, everybody(model))
        total = costs.RoundCost(*map(sum, zip(total, price, strict=True)))
    assert (total.bytes_up + total.bytes_down) / GIB == pytest.approx(181.95, rel=0.01)


@pytest.mark.parametrize(
    ('name', 'two', 'three'),
    slow_but(
        [('cifar10', 2.480, 3.721), ('stl10', 9.922, 14.883), ('image100', 10.31, 15.47)], ('cifar10', 2.480, 3.721)
    ),
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


# --- operations and memory


# --- seconds


def twin_seconds(model, k_s, clients, index):
    """Iteration by iteration, client by client."""
    pieces, h, options = model.pieces, model.hparams, model.options
    unit = {'Mbps': 125_000.0, 'MBps': 1e6}[options.bandwidth_unit]
    up, down = rounds.draw_links(options, model.seed, index, clients.ids, model.num_clients)
    speeds = rounds.client_speeds(options, model.seed, model.num_clients)
    for bandwidths, low, high in ((up, *options.client_out), (down, *options.client_in)):
        assert np.all((bandwidths >= unit * low) & (bandwidths <= unit * high))
    server = options.efficiency * options.server_teraflops * 1e12
    b, features = h.batch_size, 4 * h.batch_size * pieces.feature_size
    row = pieces.bottom_work.train + pieces.top_work.train + pieces.bottom_work.forward
    clustering = pieces.head_work.train + pieces.head_work.forward
    row += clustering + (h.server_batch_size + h.queue_size) * pieces.pair_work.train
    seconds = k_s * h.server_batch_size * row / server
    started = [n for n in range(len(clients.ids)) if clients.started[n]]
    seconds += max((2 * pieces.bottom / down[n] for n in started), default=0.0)
    row = pieces.top_work.train + pieces.top_work.forward + clustering
    row += (model.num_active * b + 2 * h.queue_size) * pieces.pair_work.train
    for t in range(h.k_u):
        active = [n for n in started if clients.completed[n] > t]
        client_seconds = [
            b * (pieces.bottom_work.train + pieces.bottom_work.forward) / speeds[clients.ids[n]]
            + 2 * features / up[n]
            + features / down[n]
            for n in active
        ]
        seconds += max(client_seconds, default=0.0) + len(active) * b * row / server
    return seconds + max((pieces.bottom / up[n] for n in started if not clients.failed[n]), default=0.0)


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
            assert costs.price_round(model, index, 20, participants).simulated_seconds == pytest.approx(
                expected, rel=1e-12
            )


def test_transfers_of_cifar10_at_the_papers_bandwidth():
    """About 245 s in a round at the middle of the ranges of Section V-C in Mbps; an eighth of it in MB/s."""

    def seconds(factor, unit='Mbps'):
        both = {'client_out': (4.4 * factor,) * 2, 'client_in': (15.0 * factor,) * 2}
        model = paper_model('cifar10')
        model = dataclasses.replace(model, options=dataclasses.replace(model.options, bandwidth_unit=unit, **both))
        return costs.price_round(model, 0, 100, everybody(model)).simulated_seconds

    computed = seconds(1e9)
    assert seconds(1) - computed == pytest.approx(245, abs=1)
    assert seconds(1, 'MBps') - computed == pytest.approx(245 / 8, abs=0.2)


def test_seconds_of_a_round_on_whole_models():
    model = digits(algorithm='fedavg')
    clients = costs.drop(everybody(model, ids=[1, 3, 4, 6, 9]), np.array([np.inf, 3, np.inf, np.inf, np.inf]))
    up, down = rounds.draw_links(model.options, model.seed, 4, clients.ids, model.num_clients)
    speeds = rounds.client_speeds(model.options, model.seed, model.num_clients)[clients.ids]
    work = model.hparams.batch_size * (model.pieces.whole_work.train + model.pieces.whole_work.forward)
    size = model.pieces.whole_bytes
    expected = []
    for n in range(5):
        steps = 3 if n == 1 else 7
        expected.append(size / down[n] + steps * work / speeds[n] + (0 if n == 1 else size / up[n]))
    assert costs.price_round(model, 4, 0, clients).simulated_seconds == pytest.approx(max(expected), rel=1e-12)


def test_a_server_model_that_takes_turns_takes_the_sum():
    model = digits()
    clients = everybody(model, ids=[1, 3, 4, 6, 9])
    paces = rounds.Paces(*(np.arange(1.0, 6.0) * scale for scale in (1, 10, 100)))
    seconds = rounds._client_seconds('sequential', clients, paces, paces.end, 2.0)
    assert seconds == 5 + 7 * (10 + 20 + 30 + 40 + 50 + 5 * 2.0) + 500


def test_links_depend_on_seed_round_and_client_alone():
    all_ = rounds.draw_links(costs.CostOptions(), 3, 8, np.arange(20), 20)
    some = rounds.draw_links(costs.CostOptions(), 3, 8, np.array([4, 17]), 20)
    np.testing.assert_array_equal(some, all_[:, [4, 17]])
    for seed, index in ((4, 8), (3, 9)):
        assert not np.any(rounds.draw_links(costs.CostOptions(), seed, index, np.arange(20), 20) == all_)


def test_every_class_of_device_has_its_share():
    options = costs.CostOptions(devices=('jetson_nano', 'jetson_tx2', 'jetson_agx_xavier'))
    speeds, counts = np.unique(rounds.client_speeds(options, 0, 31), return_counts=True)
    np.testing.assert_allclose(speeds, 0.3 * np.array([0.2359296e12, 0.6656e12, 1.410048e12]))
    assert sorted(counts) == [10, 10, 11]


def test_what_was_sent_before_a_failure_is_billed():
    model = digits()
    clients = everybody(model, ids=[1, 3, 4, 6, 9])
    clients = costs.drop(clients, np.array([np.inf, 3, np.inf, 0, 0]), never=np.array([0, 0, 0, 0, 1], bool))
    assert list(clients.survived) == [True, False, True, False, False]
    bottom, features = 19_200, 4 * 4 * 128
    bill = costs.price_round(model, 0, 8, clients)
    assert bill.bytes_down == 4 * 2 * bottom + (7 + 3 + 7) * features
    assert bill.bytes_up == 2 * bottom + (7 + 3 + 7) * 2 * features
    again = costs.drop(clients, np.array([np.inf, 5, 2, np.inf, 1]))  # nobody comes to life
    assert list(again.completed) == [7, 3, 2, 0, 0]
    assert list(again.survived) == [True, False, False, False, False]
