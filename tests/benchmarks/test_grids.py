"""The table of what a grid takes."""

import pytest

from benchmarks import grids
from tests.benchmarks.test_methods import command


def test_the_table_has_runs_in_turn_and_those_of_pytorch():
    one = {'seconds': 31.0, 'compile_s': 8.0, 'gib': 0.5}
    found = {
        'grids': [{'model': 'digits', 'values': 10, 'seeds': 5, 'one program': one}],
        'in_turn': {'digits': {'first': [7.0, 11.0], 'again': [4.0, 6.0]}},
        'torch': {'digits': {'start': 2.0, 'round': 0.5}},
    }
    last = grids.report(found, {'digits': 3}).splitlines()[-1]
    # ten times 9 s and four times 5 s; 2 s and 50 runs of 3 rounds of half a second
    assert last == '| digits | 10 | 5 | 31 | 8 | 0.50 |  |  |  | 290 | 77 |'


@pytest.mark.slow
def test_a_wrong_model_is_one_line():
    done = command('grids', '--models=cifar')
    line = 'error: --models=cifar is not a model; use some of digits, cnn\n'
    assert (done.returncode, done.stderr) == (2, line)
