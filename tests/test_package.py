"""The package without its repository: configurations by name, the command, and a wheel in an empty folder."""

import math
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from ml_collections import ConfigDict

import semisfl_jax as sfl
from semisfl_jax.__main__ import main
from semisfl_jax.config import command_line
from tests import runs


@pytest.mark.parametrize(
    ('given', 'name'),
    [('digits', 'digits'), ('digits:code', 'digits'), ('digits.py', 'digits'), ('configs/svhn.py', 'svhn')],
)
def test_a_configuration_that_comes_with_the_package_has_a_name(given, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = command_line.parse(['semisfl', f'--config={given}', '--config.rounds=7', '--workdir=here'])
    assert (command.name, command.config.data.name.split('_')[0], command.workdir) == (name, name, 'here')
    assert command.config.rounds == 7
    assert command.config.queue == ('single_ring' if given.endswith(':code') else 'two_level')


def test_a_study_has_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = command_line.parse(['semisfl', '--config=studies/table4:smoke'], studies=True)
    assert command.config.study.name == 'table4'


def test_a_file_of_ones_own_goes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = 'from semisfl_jax.configs import digits\n\ndef get_config():\n    config = digits.get_config()\n'
    (tmp_path / 'digits.py').write_text(f'{source}    config.k_s = 3\n    return config\n')
    assert command_line.parse(['semisfl', '--config=digits.py']).config.k_s == 3
    assert command_line.parse(['semisfl', '--config=digits']).config.k_s == 20


def test_a_configuration_from_python_is_that_of_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ('--config=digits:code', '--config.rounds=7', '--config.federation.alpha=0.5', '--config.seeds=0,1')
    config = sfl.get_config('digits:code', {'federation.alpha': np.float64(0.5)}, rounds=np.int32(7), seeds=range(2))
    assert (type(config.federation.alpha), type(config.rounds), config.seeds) == (float, int, (0, 1))
    assert config.to_dict() == command_line.parse(['semisfl', *words]).config.to_dict()
    assert sfl.get_config('digits', federation__alpha=2.0).federation.alpha == 2.0
    official = sfl.get_config('digits', algorithm='fedprox', setting='official', lr=0.1)
    assert (official.lr, official.optimizer, official.rounds) == (0.1, 'adam', 200)
    assert 'lr' not in official.official_keys
    assert 'optimizer' in official.official_keys


def test_a_file_of_a_configuration_may_have_any_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / 'digits.backup').write_text('from semisfl_jax.configs.digits import get_config\n')
    config = sfl.get_config('digits.backup')
    assert config.to_dict() == command_line.parse(['semisfl', '--config=digits.backup']).config.to_dict()


@pytest.mark.parametrize(
    ('arguments', 'message'),
    [
        (('digitz', {}), 'there is no configuration file digitz; did you mean digits?'),
        (('digits', {'round': 7}), r'config\.round is not a key of this configuration; did you mean config\.rounds'),
        (('digits', {'rounds': 'many'}), r"config\.rounds='many' is a str; use an int"),
        (('digits', {'rounds': None}), r'config\.rounds=None has no value; use an int'),
        (('digits', {'rounds': True}), r'config\.rounds=True is a bool; use an int'),
        (('digits', {'model.split_index': '2'}), r"config\.model\.split_index='2' is a str; use an int or None"),
        (('digits', {'federation': {'alpha': 1}}), r'config\.federation is a group of keys; .* config\.federation\.'),
        (('digits', {3: 4}), r'config\.3 is not a key of this configuration'),
        (('digits:paprr', {}), "unknown settings 'paprr'"),
    ],
)
def test_a_wrong_configuration_from_python_says_so(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(sfl.UserError, match=message):
        sfl.get_config(*arguments)


def test_a_configuration_may_be_given_by_the_path_of_its_file():
    config = sfl.get_config(runs.ROOT / 'configs' / 'digits.py', model__split_index=None, lr=1)
    assert (config.data.name, config.model.split_index, config.lr) == ('digits', None, 1.0)


@pytest.mark.parametrize(
    ('config', 'message'),
    [
        ('digits', r"'digits' is not a configuration; write get_config\('digits'\), or"),
        ({}, r'{} is not a configuration; .* or ConfigDict\(DICTIONARY\)'),
        (ConfigDict({3: 4}), r'config\.3 is not a key'),
    ],
)
def test_what_is_no_configuration_says_so(config, message):
    for function in (sfl.train, sfl.build):
        with pytest.raises(sfl.UserError, match=message):
            function(config)


FILE = 'from semisfl_jax.configs import digits\n\ndef get_config():\n    config = digits.get_config()\n    {}\n'


@pytest.mark.parametrize(
    ('name', 'text', 'message'),
    [
        ('some.py', 'x = 1\n', r' has no get_config\(\); a configuration is a Python file with get_config\(\)'),
        ('some.py', FILE.format('return None'), r': get_config\(\) returned None; it must end with `return config`'),
        ('some.py', FILE.format('return {}'), r': get_config\(\) returned a dict; it must end with `return config`'),
        ('some.py:code', FILE.format('return config'), r": get_config\(\) takes no settings; leave out ':code'"),
        ('config.json', '{"a": true}', ' was written by a run, and is not a Python file: to go on, repeat the command'),
    ],
)
def test_a_wrong_file_of_a_configuration_says_so(name, text, message, tmp_path):
    file = tmp_path / name.removesuffix(':code')
    file.write_text(text)
    for read in (sfl.get_config, lambda path: command_line.parse(['semisfl', f'--config={path}'])):
        with pytest.raises(sfl.UserError, match=f'^{re.escape(str(file))}{message}'):
            read(f'{tmp_path}/{name}')


def test_an_error_of_a_file_of_a_configuration_is_that_of_python(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / 'imported_by_some.py').write_text("from semisfl_jax import Method\nMethod('mine', titel='Mine')\n")
    (tmp_path / 'some.py').write_text('import imported_by_some\n')
    with pytest.raises(TypeError, match='titel') as error:
        sfl.get_config(tmp_path / 'some.py')
    assert str(error.traceback[-1].path) == f'{tmp_path}/imported_by_some.py'


CHANGES = {**runs.TINY, 'failures.before': 0.3, 'rounds': 4}


@pytest.mark.slow
def test_rounds_from_python_are_those_of_a_run(tmp_path):
    """Metrics and accuracies of a run with failures and an adapting K_s, to the last digit."""
    words = [f'--config.{key}={value}' for key, value in CHANGES.items()]
    assert main(['semisfl', '--config=digits', f'--workdir={tmp_path / "run"}', *words]) == 0
    simulation = sfl.build(sfl.get_config('digits', CHANGES))
    carry, carries = simulation.init(), []
    for record in runs.records(tmp_path / 'run'):
        carries.append(carry)
        carry, metrics = simulation.round(carry)
        assert carry.round == metrics['round'] == record['round']
        for name, value in metrics.items():
            expected = math.nan if record[name] is None else record[name]  # written with the digits of a float32
            np.testing.assert_array_equal(np.float32(value), np.float32(expected), err_msg=name)
        for name, value in simulation.evaluate(carry).items():
            assert record[f'{name}_accuracy'] == value
    again = simulation.round(carries[1])[1]['loss_supervised']  # any round, once more
    assert np.float32(again) == np.float32(runs.records(tmp_path / 'run')[1]['loss_supervised'])


def test_a_simulation_has_one_seed():
    with pytest.raises(sfl.UserError, match=r'config\.seeds=\(0, 1\): build\(\) takes a single seed'):
        sfl.build(sfl.get_config('digits', seeds=(0, 1)))


def test_public_names_are_there():
    assert {name for name in sfl.__all__ if not hasattr(sfl, name)} == set()
    assert sfl.register is sfl.algorithms.register
    assert sfl.train is sfl.loop.train
    with pytest.raises(AttributeError, match="has no attribute 'losess'"):
        sfl.losess  # noqa: B018


@pytest.fixture(scope='session')
def installed(tmp_path_factory):
    """A folder with what a wheel installs, and an empty one."""
    root = tmp_path_factory.mktemp('wheel')
    source, site, empty = (root / name for name in ('source', 'site', 'empty'))
    empty.mkdir()
    left_out = shutil.ignore_patterns('.git', 'build', 'runs', 'results', '*.egg-info', '__pycache__', '.venv')
    shutil.copytree(runs.ROOT, source, ignore=left_out)
    pip = [sys.executable, '-m', 'pip', '--disable-pip-version-check']
    subprocess.run([*pip, 'wheel', '--quiet', '--no-deps', '-w', root, source], check=True)
    (wheel,) = root.glob('*.whl')
    subprocess.run([*pip, 'install', '--quiet', '--no-deps', '--target', site, wheel], check=True)
    assert sfl.__version__ in wheel.name
    return site, empty


def start(installed, *words):
    site, empty = installed
    environment = os.environ | {'PYTHONPATH': str(site), 'JAX_PLATFORMS': 'cpu'}
    return subprocess.run(
        [sys.executable, *words], cwd=empty, env=environment, capture_output=True, text=True, timeout=runs.HANGS
    )


@pytest.mark.slow
def test_a_wheel_trains_in_an_empty_folder(installed):
    tiny = [f'--config.{key}={value}' for key, value in runs.TINY.items()]
    done = start(installed, '-m', 'semisfl_jax', '--config=digits', '--workdir=a', *tiny)
    assert done.returncode == 0, done.stderr
    assert 'teacher accuracy' in done.stdout
    assert (installed[1] / 'a' / 'summary.json').exists()
    config_path = start(installed, '-c', 'import semisfl_jax.configs.digits as d; print(d.__file__)').stdout
    assert config_path.startswith(str(installed[0]))
    assert (installed[0] / 'semisfl_jax' / 'py.typed').exists()


STUDY = """
from semisfl_jax.configs.studies import table4
from semisfl_jax.studies import engine
study = table4.get_config('smoke').study.part(['SemiSFL'], ['Dir(0.1)'])
engine.run(study, {'rounds': 2, 'seeds': (0,), 'k_s': 2, 'k_u': 1}, 'studies')
"""


@pytest.mark.slow
def test_a_wheel_makes_studies(installed):
    done = start(installed, '-c', STUDY)
    assert done.returncode == 0, done.stderr
    (report,) = (installed[1] / 'studies').glob('table4*/report.md')
    assert f'version {sfl.__version__}' in report.read_text()
