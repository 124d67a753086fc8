"""The benchmark of the methods: none is missing, its figures are those that were measured, and the command runs."""

import dataclasses
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import method_report, method_side
from benchmarks.method_cases import Case, methods
from semisfl_jax import algorithms
from tests.one_line import assert_one_line
from tests.runs import HANGS

MIB = 2**20


def test_every_method_is_measured_in_all_its_forms():
    classifying = {name for name, method in algorithms.METHODS.items() if not method.dense}  # one case for all
    assert {method.algorithm for method in methods()} == classifying
    names = [method.name for method in methods()]
    assert len(set(names)) == len(names)
    assert {'semisfl', 'fedavg:fixmatch', 'fedavg:uda', 'fedavg:supervised'} <= set(names)
    assert [method.name for method in methods(('fedavg',))] == ['fedavg:fixmatch', 'fedavg:uda', 'fedavg:supervised']
    assert [method.name for method in methods(('fedavg:uda', 'semisfl'))] == ['fedavg:uda', 'semisfl']
    with pytest.raises(KeyError, match='fedaverage'):
        methods(('semisfl', 'fedaverage'))


@pytest.mark.parametrize('method', methods(), ids=lambda method: method.name)
@pytest.mark.parametrize('data', ['fashion_mnist', 'cifar10'])
def test_all_forms_are_valid_and_share_everything_else(data, method):
    case = Case((), data=data, clients=3, batch_size=16, k_s=4, k_u=5, client_map='loop', augment=False)
    config, plain = (method_side.configuration(case, case_method) for case_method in (method, methods(('semisfl',))[0]))
    for name in ('data.name', 'data.fake_size', 'federation', 'model', 'augment', 'batch_size', 'k_u', 'precision'):
        value, other = (dict(c.to_dict(), **{f'data.{k}': v for k, v in c.data.items()})[name] for c in (config, plain))
        if name == 'federation':
            other = other | {key.removeprefix('federation.'): v for key, v in method.keys if key.startswith(name)}
        assert value == other
    assert config.k_s == dict(method.keys).get('k_s', 4)


def test_the_table_shows_what_was_measured():
    seconds = {'semisfl': [2.0, 1.0, 4.0], 'fedavg:uda': [3.0, 3.0, 3.5]}
    facts = {
        name: {'compile_s': 5.25, 'temporary_bytes': 40 * MIB, 'state_bytes': MIB, 'images': 600} for name in seconds
    }
    result = {
        'machine': {'cores': 2, 'platform': 'Linux'},
        'python': '3.11',
        'case': dataclasses.asdict(Case((), clients=3, k_s=4, convolution='native')),
        'seconds': seconds,
        'facts': {'device': 'cpu (cpu)', 'versions': {'jax': '9.9'}, 'methods': facts},
    }
    lines = method_report.table(result).splitlines()
    assert lines[2] == '| semisfl | 2.00 (1.00 to 4.00) | 1.00 | 300 | 5.2 | 40.0 MiB | 1.00 MiB |'
    assert lines[3] == '| fedavg:uda | 3.00 (3.00 to 3.50) | 1.50 | 200 | 5.2 | 40.0 MiB | 1.00 MiB |'
    assert '3 clients x 64, K_s 4, K_u 10, augmented views' in lines[5]
    assert 'convolution native' in lines[5]
    assert 'Medians of 3 rounds' in lines[5]
    assert 'jax 9.9' in lines[6]
    del seconds['semisfl']
    assert '| fedavg:uda | 3.00 (3.00 to 3.50) | – | 200 |' in method_report.table(result)


def run_benchmark(*words):
    command = [sys.executable, '-m', 'benchmarks.methods', *words]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=HANGS, check=False, cwd=Path(__file__).parents[1]
    )


@pytest.mark.slow
def test_the_command_writes_figures_table_and_plot(tmp_path):
    names = ['fedavg:supervised', 'supervised_only']
    sizes = ('--data=digits', '--clients=3', '--batch_size=4', '--k_s=1', '--k_u=2', '--repeats=2')
    done = run_benchmark(*sizes, f'--methods={",".join(names)}', '--noaugmentation', f'--out={tmp_path}')
    assert done.returncode == 0, done.stderr
    assert f'[1/{len(names)}] compiling {names[0]} …' in done.stdout
    assert f'2/2: {names[0]}' in done.stdout
    assert '| fedavg:supervised |' in done.stdout
    result = json.loads((tmp_path / 'methods.json').read_text())
    assert {name: len(seconds) for name, seconds in result['seconds'].items()} == dict.fromkeys(names, 2)
    facts = result['facts']['methods']
    assert facts['supervised_only']['images'] == 1 * 4
    assert facts['fedavg:supervised']['images'] == 1 * 4 + 2 * 3 * 4
    # float32: student and teacher, and the student alone (tests/test_models.py counts 4,800 + 8,906 parameters)
    assert facts['supervised_only']['state_bytes'] == pytest.approx(2 * 4 * 13_706, rel=0.01)
    assert facts['fedavg:supervised']['state_bytes'] == pytest.approx(4 * 13_706, rel=0.01)
    plotted = importlib.util.find_spec('matplotlib') is not None
    expected = {'methods.json', 'methods.md'} | ({'methods.png', 'methods.svg'} if plotted else set())
    assert {path.name for path in tmp_path.iterdir()} == expected


def test_wrong_flags_are_told_in_words():
    done = run_benchmark('--methods=fedaverage')
    assert done.returncode == 2
    assert_one_line(done.stderr, ['--methods=fedaverage is not a method; use ', ' fedavg:fixmatch, '])
