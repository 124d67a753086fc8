"""The benchmarks of methods and of growth."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from benchmarks import arithmetic, growth_report, method_side
from benchmarks.growth_points import Point
from benchmarks.method_cases import Case, methods
from semisfl_jax import algorithms
from tests.helpers.runs import HANGS, ROOT


def command(name, *words):
    command = [sys.executable, '-m', f'benchmarks.{name}', *words]
    own = os.environ | {'JAX_PLATFORMS': 'cpu'}
    return subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=False, cwd=ROOT, env=own)


def test_every_method_is_measured_in_all_its_forms():
    classifying = {name for name, method in algorithms.METHODS.items() if not method.dense}  # one case for all
    assert {method.algorithm for method in methods()} == classifying
    assert [method.name for method in methods(('fedavg',))] == ['fedavg:fixmatch', 'fedavg:uda', 'fedavg:supervised']
    assert [method.name for method in methods(('fedavg:uda', 'semisfl'))] == ['fedavg:uda', 'semisfl']
    with pytest.raises(KeyError, match='fedaverage'):
        methods(('semisfl', 'fedaverage'))


def test_all_forms_are_valid_and_share_everything_else():
    case = Case((), data='cifar10', clients=3, batch_size=16, k_s=4, k_u=5, client_map='loop', augment=False)
    (plain,) = (method_side.configuration(case, method) for method in methods(('semisfl',)))
    for method in methods():
        config = method_side.configuration(case, method)  # which checks it
        for name in ('data.name', 'data.fake_size', 'model', 'augment', 'batch_size', 'k_u', 'precision'):
            flat, others = (c.to_dict() | {f'data.{k}': v for k, v in c.data.items()} for c in (config, plain))
            assert flat[name] == others[name]
        assert config.k_s == dict(method.keys).get('k_s', 4)


@pytest.mark.slow
def test_the_command_writes_figures(tmp_path):
    names = ['fedavg:supervised', 'supervised_only']
    sizes = ('--data=digits', '--clients=3', '--batch_size=4', '--k_s=1', '--k_u=2', '--repeats=2')
    done = command('methods', *sizes, f'--methods={",".join(names)}', '--noaugmentation', f'--out={tmp_path}')
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / 'methods.json').read_text())
    assert {name: len(seconds) for name, seconds in result['seconds'].items()} == dict.fromkeys(names, 2)
    facts = result['facts']['methods']
    assert facts['supervised_only']['images'] == 1 * 4
    assert facts['fedavg:supervised']['images'] == 1 * 4 + 2 * 3 * 4
    # float32: student and teacher, and the student alone (tests/models/test_zoo.py counts 4,800 + 8,906 parameters)
    assert facts['supervised_only']['state_bytes'] == pytest.approx(2 * 4 * 13_706, rel=0.01)
    assert facts['fedavg:supervised']['state_bytes'] == pytest.approx(4 * 13_706, rel=0.01)


# --- growth


def test_arithmetic_of_growth_by_hand():
    assert arithmetic.held_per_client(parameters=10, image=12, features=7, batch_size=5) == {
        'weights': 120,  # 10 numbers of 4 bytes: weights, momentum, gradient
        'views': 480,
        'features': 420,
    }
    # 6 rows against 6 keys of the batch and 8 in the queue, products of 3 numbers, and as much for the gradient
    assert arithmetic.similarity(clients=2, batch_size=3, width=3, queue=8) == 2 * (2 * 3) * 6 * 14


def test_the_exponent_is_that_of_the_larger_half():
    points = [Point(model='small_cnn', batch_size=4, k_s=1, k_u=1, active=n) for n in (1, 2, 4, 8, 16)]
    measured = [
        {'point': dataclasses.asdict(point), 'seconds': {'round': [max(point.active, 4) ** 1.5]}} for point in points
    ]
    slope, first, last = growth_report.exponent(measured)
    assert (round(slope, 9), first, last) == (1.5, 4, 16)


@pytest.mark.slow
def test_the_command_measures_devices(tmp_path):
    sizes = ('--model=small_cnn', '--clients=2', '--batch_size=2', '--k_s=1', '--k_u=1', '--repeats=1')
    done = command('growth', '--studies=devices', '--devices=2', *sizes, f'--out={tmp_path}')
    assert done.returncode == 0, done.stderr
    (point,) = json.loads((tmp_path / 'growth.json').read_text())['points']
    assert point['failed'] == ''
    assert point['facts']['start_s']['all'] > 0
    assert point['memory']['peak_rss'] > 2**26
