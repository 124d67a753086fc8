"""The benchmark of growth: its figures are those that were measured, its points are real, and failures stay small."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from benchmarks import arithmetic, growth_report, growth_runs
from benchmarks.growth_points import STUDIES, Point, points
from tests.runs import ROOT

TINY = Point(model='small_cnn', batch_size=4, k_s=1, k_u=1, active=2)
MIB = 2**20


def record(point, seconds, alone=(), temporary=40 * MIB, compile_s=5.0, failed=''):
    """As a point of the CNN would be written down; a failed one has facts, and no seconds."""
    facts = {
        'device': 'cpu (cpu)',
        'versions': {'jax': '9.9'},
        'start_s': {'all': 1.0, 'partition': 0.25, 'federation': 0.125},
        'compile_s': {'round': compile_s, 'alone': 4.0},
        'temporary_bytes': temporary,
        'per_client_bytes': {'weights': 2 * MIB, 'views': MIB, 'features': MIB},
        'too_large': failed,
    }
    measured = {'round': list(seconds), 'alone': list(alone)} if seconds else {}
    memory = {'peak_rss': 3 * 2**29, 'peak_device': None} if seconds else None
    return {
        'point': dataclasses.asdict(point),
        'seconds': measured,
        'facts': facts,
        'memory': memory,
        'failed': failed,
    }


@pytest.fixture
def result():
    base = Point(model='cnn', batch_size=8, k_s=1, k_u=2, active=4)
    active = points('active', base, (1, 10, 100, 1000), 5)
    active_seconds = [(0.5,), (0.5,), (2.0,), (), (1.0,), (1.0,), (3.0, 2.5, 4.0), (30.0,)]
    records = [
        record(point, seconds, temporary=(30 + 5 * point.active) * MIB, failed='' if seconds else 'no room')
        for point, seconds in zip(active, active_seconds, strict=True)
    ]
    records += [record(p, (s,)) for p, s in zip(points('total', base, (10, 1000), 5), (2.0, 2.2), strict=True)]
    records += [record(p, (s,)) for p, s in zip(points('devices', base, (1, 2), 5), (1.0, 1.5), strict=True)]
    records += [
        record(point, (s,), alone=(0.8 * point.seeds,), compile_s=5.0 + point.seeds)
        for point, s in zip(points('seeds', base, (1, 2), 5), (0.8, 1.2, 0.8, 2.0), strict=True)
    ]
    return {'machine': {'cores': 2, 'platform': 'Linux'}, 'python': '3.11', 'points': records}


def rows(table, heading):
    """Cells of one table, header and rule left out."""
    part = table.split(f'### {heading}\n')[1].split('###')[0]
    lines = [line for line in part.splitlines() if line.startswith('|')][2:]
    return [[cell.strip() for cell in line.strip('|').split('|')] for line in lines]


def test_the_table_shows_what_was_measured(result):
    table = growth_report.table(result)
    active = rows(table, 'Active clients')
    assert active[6] == (
        ['100', 'chunks of 5', '3.00 (2.50 to 4.00)', '30.0', '5.0', '530 MiB', '400 MiB (75%)', '130 MiB', '1.50 GiB']
    )
    assert active[3][2:6] == ['–', '–', '5.0', '5,030 MiB'], 'a point that was not run still says what is known'
    assert 'chunks of 5 1.00 (from 100 to 1,000)' in table  # of four points the larger two: 3 to 30 s over a tenfold
    assert 'default map 0.60 (from 10 to 100)' in table  # of three that are left, also two: 0.5 to 2 s
    assert rows(table, 'Clients in total')[1] == ['1,000', '2.20 (2.20 to 2.20)', '0.250', '0.125', '5.0', '40.0 MiB']
    assert rows(table, 'Devices')[1][:3] == ['2', '1.50 (1.50 to 1.50)', '1.50']
    assert rows(table, 'Seeds')[1][2:5] == ['0.600 (0.600 to 0.600)', '0.800 (0.800 to 0.800)', '0.75']


def test_the_exponent_is_that_of_the_larger_half():
    values = (1, 2, 4, 8, 16)  # the first two are flat; from 4 on, seconds grow with the power 1.5
    sizes = [dataclasses.replace(TINY, active=n) for n in values]
    measured = [record(p, (max(p.active, 4) ** 1.5,)) for p in sizes]
    slope, first, last = growth_report.exponent(measured)
    assert (round(slope, 9), first, last) == (1.5, 4, 16)
    assert growth_report.exponent(measured[:1]) is None


def test_one_thing_grows_in_a_study():
    for study, values in {'active': (2, 6), 'total': (4, 20), 'devices': (1, 3), 'seeds': (1, 2)}.items():
        of_study = points(study, TINY, values, 5)
        assert [p.value for p in of_study] == list(values) * (2 if study in ('active', 'seeds') else 1)
        others = [{**dataclasses.asdict(p), STUDIES[study]: 0, 'client_chunk': 0, 'trials': ''} for p in of_study]
        assert all(entry == others[0] for entry in others)
        if study == 'devices':
            assert others[0]['active'] == 3, 'two clients would leave a device idle'
        if study == 'total':
            assert others[0]['unlabeled'] == 20, 'an image for each of the most clients'
    assert [p.client_chunk for p in points('active', TINY, (2, 6), 5)] == [0, 0, 5, 5]
    assert [p.trials for p in points('seeds', TINY, (1,), 5)] == ['loop', 'vmap']


def test_arithmetic_of_growth_by_hand():
    assert arithmetic.held_per_client(parameters=10, image=12, features=7, batch_size=5) == {
        'weights': 120,  # 10 numbers of 4 bytes: weights, momentum, gradient
        'views': 480,
        'features': 420,
    }
    # 6 rows against 6 keys of the batch and 8 in the queue, products of 3 numbers, and as much for the gradient
    assert arithmetic.similarity(clients=2, batch_size=3, width=3, queue=8) == 2 * (2 * 3) * 6 * 14


def test_the_time_left_is_that_of_the_images_to_come():
    done = dataclasses.replace(TINY, active=9)  # 40 images
    measured = record(done, (4.0, 4.0))
    todo = [dataclasses.replace(TINY, active=19)]  # 80 images, three times: two that count and the first
    assert growth_runs.remaining([measured], [10.0], todo) == pytest.approx((10 - 8) + 3 * 8)
    assert growth_runs.remaining([measured], [10.0], []) == 0


@pytest.mark.slow
def test_the_command_measures_devices(tmp_path):
    sizes = ('--model=small_cnn', '--clients=2', '--batch_size=2', '--k_s=1', '--k_u=1', '--repeats=1')
    words = [sys.executable, '-m', 'benchmarks.growth', '--studies=devices', '--devices=2', *sizes, f'--out={tmp_path}']
    environment = os.environ | {'JAX_PLATFORMS': 'cpu'}
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    (point,) = json.loads((tmp_path / 'growth.json').read_text())['points']
    assert point['failed'] == ''
    assert set(point['facts']['start_s']) == {'all', 'partition', 'federation'}
    assert point['memory']['peak_rss'] > 2**26
