"""The package without its repository: configurations by name, the command, and a wheel in an empty folder."""

import os
import shutil
import subprocess
import sys

import pytest

import semisfl_jax
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
    own = 'from semisfl_jax.configs import digits\n\ndef get_config():\n    config = digits.get_config()\n'
    (tmp_path / 'digits.py').write_text(f'{own}    config.k_s = 3\n    return config\n')
    assert command_line.parse(['semisfl', '--config=digits.py']).config.k_s == 3
    assert command_line.parse(['semisfl', '--config=digits']).config.k_s == 20


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
    assert semisfl_jax.__version__ in wheel.name
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
    place = start(installed, '-c', 'import semisfl_jax.configs.digits as d; print(d.__file__)').stdout
    assert place.startswith(str(installed[0]))


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
    assert f'version {semisfl_jax.__version__}' in report.read_text()
