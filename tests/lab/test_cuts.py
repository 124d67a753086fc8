"""The table and the plot of all cuts."""

import csv
import itertools
import sys

import numpy as np
import pytest

from configs import cifar10
from semisfl_jax.base.file_io import as_csv
from semisfl_jax.lab import cuts
from semisfl_jax.lab.cuts import pricing
from tests.helpers.one_line import assert_one_line
from tests.helpers.runs import DIGITS, command

PARAMETERS = np.cumsum([1_792, 110_784, 663_936, 884_992, 590_080, 4096 * 4097, 4096 * 4097])
FEATURES = np.array([16 * 16 * 64, 8 * 8 * 192, 8 * 8 * 384, 8 * 8 * 256, 4096, 4096, 4096])


@pytest.fixture(scope='module')
def alexnet():
    return pricing(cifar10.get_config())


def column(priced, name):
    return np.array([getattr(cut, name) for cut in priced.cuts])


@pytest.mark.slow
def test_every_cut_of_alexnet(alexnet):
    assert (list(column(alexnet, 'cut')), alexnet.chosen) == ([1, 2, 3, 4, 5, 6, 7], 5)
    np.testing.assert_array_equal(column(alexnet, 'features'), FEATURES)
    np.testing.assert_array_equal(column(alexnet, 'bottom'), 4 * PARAMETERS)
    tensor = 4 * 50 * 64 * FEATURES
    np.testing.assert_array_equal(column(alexnet, 'down'), 2 * 4 * PARAMETERS + tensor)
    np.testing.assert_array_equal(column(alexnet, 'up'), 4 * PARAMETERS + 2 * tensor)
    np.testing.assert_array_equal(column(alexnet, 'all_clients'), 10 * (3 * 4 * PARAMETERS + 3 * tensor))
    assert alexnet.whole.down == alexnet.whole.up == 4 * 35_855_178


@pytest.mark.slow
def test_operations_and_memory_of_alexnet(alexnet):
    """Products alone: the teacher's forward pass, and the student's forward and backward pass without its images."""
    sides, channels = (32, 16, 8, 8, 8), (3, 64, 192, 384, 256, 256)
    products = [2 * (3 * s - 2) ** 2 * a * b for s, (a, b) in zip(sides, itertools.pairwise(channels), strict=True)]
    products += [2 * 4096**2] * 2
    by_hand = 64 * (4 * np.cumsum(products) - products[0])
    assert np.all(by_hand <= column(alexnet, 'client_flop'))
    np.testing.assert_allclose(column(alexnet, 'client_flop')[1:], by_hand[1:], rtol=0.02)
    assert column(alexnet, 'client_flop')[-1] < alexnet.whole.client_flop
    weights = 4 * 4 * PARAMETERS  # weights, gradient, momentum and the teacher's
    assert np.all(column(alexnet, 'memory') >= weights + 4 * 64 * 32 * 32 * 3)
    assert np.all(np.diff(column(alexnet, 'memory')) > 0)


@pytest.mark.slow
def test_text_and_csv_hold_the_same_cuts(alexnet):
    _, _, *lines = cuts.as_text(alexnet).splitlines()
    assert [line.split()[0] for line in lines[:8]] == ['1', '2', '3', '4', '*', '6', '7', 'whole']
    assert lines[4].split()[1:7] == ['5', '4,096', '8.6', '67.2', '108.6', '1.716']
    small = alexnet._replace(cuts=(alexnet.cuts[0]._replace(bottom=640),))  # 160 numbers are 0.00061 MiB
    assert cuts.as_text(small).splitlines()[2].split()[2] == '0.00061'
    rows = csv.DictReader(as_csv(cuts.Price._fields, [*alexnet.cuts, alexnet.whole]).decode().splitlines())
    for row, cut in zip(rows, (*alexnet.cuts, alexnet.whole), strict=True):
        assert [row[name] for name in cut._fields] == [str(value) for value in cut]


@pytest.mark.slow
def test_the_command_prints_and_draws_all_cuts(tmp_path, capsys, monkeypatch):
    assert command('cuts', DIGITS, f'--workdir={tmp_path}/out', '--config.algorithm=semisfl') == 0
    printed = capsys.readouterr().out
    assert printed.startswith('small_cnn on digits, semisfl: 5 active clients, K_u 10, B 16\n')
    assert (tmp_path / 'out' / 'cuts.txt').read_text() in printed
    monkeypatch.setitem(sys.modules, 'matplotlib', None)  # without it the table is written
    assert command('cuts', DIGITS, f'--workdir={tmp_path}/table') == 0
    assert {path.name for path in (tmp_path / 'table').iterdir()} == {'cuts.txt', 'cuts.csv'}


@pytest.mark.parametrize(
    ('words', 'named'),
    [
        ('--config.algorithm=fedavg', "algorithm='fedavg'"),
        ('--config.local.epochs=2', 'epochs=2'),
        ('--workdir={file}', '--workdir'),
    ],
)
def test_a_mistake_is_named_before_the_table(tmp_path, capsys, words, named):
    file = tmp_path / 'file'
    file.write_text('')
    assert command('cuts', DIGITS, f'--workdir={tmp_path}/none', words.format(file=file)) == 2
    captured = capsys.readouterr()
    assert_one_line(captured.err, [named])
    assert (captured.out, list(tmp_path.iterdir())) == ('', [file])
