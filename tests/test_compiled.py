"""The script that compiles all methods and models for devices that are not there: what it compiles, keeps and says."""

import json
import subprocess
import sys

import pytest

from benchmarks import compiled
from benchmarks.compiled import Cell
from benchmarks.method_cases import methods
from semisfl_jax.preview import targets
from tests import runs
from tests.marks import skip_without_compiler

FAMILIES = ['small_cnn', 'cnn']


def test_the_cross_comes_first_and_a_server_alone_is_not_divided():
    chosen = methods(('semisfl', 'fedswitch', 'supervised_only'))
    cells = compiled.cells('h200', [1, 8], chosen, FAMILIES)
    assert len(cells) == 3 * 2 + 2 * 2
    assert [compiled.in_cross(cell) for cell in cells] == [True] * 7 + [False] * 3
    assert {(cell.method, cell.family) for cell in cells[7:]} == {
        ('fedswitch', 'small_cnn'),
        ('supervised_only', 'small_cnn'),
    }


def test_tables_of_the_cross_and_of_the_rest():
    done = {
        'bytes': 3 * 2**30,
        'fits': True,
        'kernels': {'cross_entity_iteration': 130, 'local_step': 1},
        'seconds': 21.4,
    }
    results = {
        Cell('h200', 1, 'semisfl', 'cnn'): done,
        Cell('h200', 1, 'semisfl', 'vgg16'): done | {'fits': False, 'bytes': 200 * 2**30},
        Cell('h200', 1, 'fed_sh', 'cnn'): {'impossible': 'why'},
        Cell('h200', 8, 'semisfl', 'cnn'): {'refused': 'why'},
        Cell('h200', 8, 'semisfl', 'vgg16'): {'refused': 'why', 'too_large': True},
        Cell('v5e', 1, 'semisfl', 'cnn'): done | {'seconds': 99.0},
    }
    by_model, by_method = compiled.tables(results).split('### every method with cnn')
    assert '|  | h200, 1 device | h200, 8 devices | v5e, 1 device |' in by_model
    assert '| cnn | 3 GiB, 130, 21 s | **no** | 3 GiB, 130, 99 s |' in by_model
    assert '| vgg16 | 2e+02 GiB**, too large**, 130, 21 s | **too large** |  |' in by_model
    assert '| fed_sh | - |  |  |' in by_method
    assert '| semisfl | 3 GiB, 130, 21 s | **no** | 3 GiB, 130, 99 s |' in by_method

    results[Cell('h200', 1, 'fed_sh', 'vgg16')] = done | {'kernels': {'local_step': 77}}
    rest = compiled.tables(results).split('### everything, h200, 1 device\n')[1]
    assert '|  | cnn | vgg16 |' in rest
    assert '| fed_sh | - | 3 GiB, 77, 21 s |' in rest
    assert 'everything' not in rest


def command(out, *words):
    words = ['--methods=semisfl', '--families=small_cnn', '--devices=1', f'--out={out}', *words]
    return subprocess.run(
        [sys.executable, '-m', 'benchmarks.compiled', *words],
        cwd=runs.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize('name', ['here', 'h200', 'v5e'])
def test_what_is_there_is_not_compiled_again(tmp_path, name):
    """A small model; for another device where its compiler is installed."""
    name = targets.HERE if name == 'here' else name
    if name != targets.HERE:
        skip_without_compiler(name)
    assert '1 programs, 0 of them there' in command(tmp_path, f'--target={name}').stdout
    (record,) = map(json.loads, (tmp_path / 'compiled.jsonl').read_text().splitlines())
    assert record['bytes'] > 0
    assert record['kernels']['cross_entity_iteration'] > 0
    table = (tmp_path / 'compiled.md').read_text()
    assert '| small_cnn | ' in table
    assert 'every method' not in table
    assert '1 programs, 1 of them there' in command(tmp_path, f'--target={name}').stdout
    assert len((tmp_path / 'compiled.jsonl').read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--methods=fedsgd'], '--methods=fedsgd is not a method'),
        (['--families=lenet'], '--families=lenet is not a family'),
        (['--devices=all'], '--devices=all must be numbers of devices'),
    ],
)
def test_mistakes_are_one_line(tmp_path, words, message):
    result = command(tmp_path, f'--target={targets.HERE}', *words)
    assert result.returncode == 2
    assert message in result.stderr.strip().splitlines()[-1]
    assert not list(tmp_path.iterdir())
