"""The table of what a start takes."""

import json

import pytest

from benchmarks import starts
from tests.benchmarks.test_methods import command


@pytest.mark.slow
def test_a_cold_and_a_warm_start_are_measured_stage_by_stage(tmp_path):
    done = command('starts', '--cases=fedavg', '--repeats=1', f'--out={tmp_path}')
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / 'starts.json').read_text())
    assert list(found) == ['fedavg, cold', 'fedavg, warm']
    for each in (cold := found['fedavg, cold'][0], warm := found['fedavg, warm'][0]):
        stages = sum(seconds for name, seconds in each.items() if name in starts.STAGES)
        assert 0 < stages < each['total']  # Python itself has to start, too
        assert min(each.values()) >= 0
    assert set(cold) == set(starts.ALL)
    assert set(starts.ALL) - set(warm) == {'trace', 'lower'}
    assert warm['compile'] < cold['compile']


def test_the_table_has_medians():
    stages = dict.fromkeys(starts.STAGES, 0.5)
    several = [{**stages, 'round': each, 'total': 4 + each, 'processor': 3.0} for each in (9.0, 1.0, 2.0)]
    lines = starts.report({'digits, cold': several}, 3).splitlines()
    assert lines[-1] == '| digits, cold | 0.50 | 0.50 | 0.50 | 0.50 | 0.50 | 0.50 | 2.00 | 0.50 | 6.00 | 3.00 |'


@pytest.mark.slow
def test_a_wrong_case_and_a_wrong_folder_are_one_line(tmp_path):
    for words, line in (
        (
            ['--cases=digits,cifar'],
            'error: --cases=cifar is not a case; use some of digits, cnn, alexnet, fedavg, m_fed\n',
        ),
        ([f'--before={tmp_path}'], f'error: --before={tmp_path} is no checkout of this repository\n'),
    ):
        done = command('starts', *words)
        assert (done.returncode, done.stderr) == (2, line)
