"""The package without its repository: configurations by name, the command, and a wheel in an empty folder."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from importlib import metadata

import pytest
from packaging.requirements import Requirement

import semisfl_jax as sfl
from semisfl_jax.config import command_line
from tests.helpers import runs

FILE = 'from semisfl_jax.configs import digits\n\ndef get_config():\n    config = digits.get_config()\n    {}\n'


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Without the repository."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize('given', ['digits', 'digits:code', 'digits.py', 'configs/svhn.py'])
def test_a_configuration_that_comes_with_the_package_has_a_name(given):
    command = command_line.parse(['semisfl', f'--config={given}', '--config.rounds=7', '--workdir=here'])
    name = 'svhn' if 'svhn' in given else 'digits'
    assert (command.name, command.config.data.name.split('_')[0], command.workdir) == (name, name, 'here')
    assert command.config.rounds == 7
    assert command.config.queue == ('single_ring' if given.endswith(':code') else 'two_level')


def test_a_study_has_a_name_and_a_file_of_ones_own_goes_before_one(folder):
    command = command_line.parse(['semisfl', '--config=studies/table4:smoke'], studies=True)
    assert command.config.study.name == 'table4'
    for name in ('digits.py', 'digits.backup'):  # any name
        (folder / name).write_text(FILE.format('config.k_s = 3\n    return config'))
        assert command_line.parse(['semisfl', f'--config={name}']).config.k_s == 3
        assert sfl.get_config(name).k_s == 3
    assert command_line.parse(['semisfl', '--config=digits']).config.k_s == 20


def test_public_names_are_there():
    assert {name for name in sfl.__all__ if not hasattr(sfl, name)} == set()
    with pytest.raises(AttributeError, match="'losess'"):
        sfl.losess  # noqa: B018


IMPORTS = """
from semisfl_jax.configs import digits
from semisfl_jax.configs.studies.table4 import get_config
assert (digits.get_config().k_s, get_config('smoke').study.name) == (20, 'table4')
try:
    import semisfl_jax.tests
except ModuleNotFoundError:
    print(digits.__file__)
"""


def imported(python, **environment):
    """The file of the configuration digits, if the configurations are in the package and the tests are not."""
    words, environment = [python, '-c', IMPORTS], {**os.environ, 'JAX_PLATFORMS': 'cpu', **environment}
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_a_checkout_has_the_configurations_in_the_package_and_not_the_tests():
    assert imported(sys.executable, PYTHONPATH=str(runs.ROOT)) == str(runs.ROOT / 'configs' / 'digits.py')


def copied(folder):
    """A copy of the repository, in which pip may write."""
    left_out = shutil.ignore_patterns('.git', 'build', 'runs', 'results', '*.egg-info', '__pycache__', '.venv')
    return shutil.copytree(runs.ROOT, folder, ignore=left_out)


@pytest.mark.slow
def test_an_editable_install_has_the_configurations_too(tmp_path):
    source, python = copied(tmp_path / 'source'), tmp_path / 'venv' / 'bin' / 'python'
    venv.create(tmp_path / 'venv')
    pip = [sys.executable, '-m', 'pip', '--disable-pip-version-check', '--python', python]
    subprocess.run([*pip, 'install', '--quiet', '--no-deps', '-e', source], check=True)
    (site,) = (tmp_path / 'venv' / 'lib').glob('*/site-packages')
    (site / 'dependencies.pth').write_text(sysconfig.get_path('purelib'))
    assert imported(python, PYTHONPATH='') == str(source / 'configs' / 'digits.py')


STUDY = """
from semisfl_jax.configs.studies import table4
from semisfl_jax.lab.studies import engine
study = table4.get_config('smoke').study.part(['SemiSFL'], ['Dir(0.1)'])
engine.run(study, {'rounds': 2, 'seeds': (0,), 'k_s': 2, 'k_u': 1}, 'studies')
"""


@pytest.mark.slow
def test_a_wheel_trains_and_makes_studies_in_an_empty_folder(tmp_path):
    source, site, empty = copied(tmp_path / 'source'), tmp_path / 'site', tmp_path / 'empty'
    empty.mkdir()
    pip = [sys.executable, '-m', 'pip', '--disable-pip-version-check']
    subprocess.run([*pip, 'wheel', '--quiet', '--no-deps', '-w', tmp_path, source], check=True)
    (wheel,) = tmp_path.glob('*.whl')
    subprocess.run([*pip, 'install', '--quiet', '--no-deps', '--target', site, wheel], check=True)
    assert sfl.__version__ in wheel.name
    assert (site / 'semisfl_jax' / 'py.typed').exists()
    assert imported(sys.executable, PYTHONPATH=str(site)) == str(site / 'semisfl_jax' / 'configs' / 'digits.py')
    tiny = [f'--config.{key}={value}' for key, value in runs.TINY.items()]
    environment = os.environ | {'PYTHONPATH': str(site), 'JAX_PLATFORMS': 'cpu'}
    for words in (['-m', 'semisfl_jax', '--config=digits', '--workdir=a', *tiny], ['-c', STUDY]):
        command = [sys.executable, *words]
        done = subprocess.run(
            command, cwd=empty, env=environment, capture_output=True, text=True, timeout=runs.HANGS, check=False
        )
        assert done.returncode == 0, done.stderr
    assert (empty / 'a' / 'summary.json').exists()
    (report,) = (empty / 'studies').glob('table4*/report.md')
    assert f'version {sfl.__version__}' in report.read_text()


def test_locked_versions_are_in_the_ranges_of_the_requirements():
    lines = (runs.ROOT / 'docs/docker/constraints.txt').read_text().splitlines()
    locked = dict(line.split('==') for line in lines if not line.startswith('#'))
    names = {re.sub('[-_.]+', '-', name).lower(): version for name, version in locked.items()}
    for text in metadata.requires('semisfl-jax'):
        requirement = Requirement(text)
        if requirement.marker is None:
            assert names[re.sub('[-_.]+', '-', requirement.name).lower()] in requirement.specifier, text


def test_a_page_about_the_package_has_no_link_that_works_in_the_repository_alone():
    assert not re.findall(r'(?:\]\(|src=")(?!https?:|#)[^)"]+', metadata.metadata('semisfl-jax').get_payload())
