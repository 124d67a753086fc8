"""The package without its repository: configurations by name, the command, a wheel in an empty folder, and the
reference of its public names."""

import os
import re
import shutil
import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest

import semisfl_jax as sfl
from semisfl_jax.config import command_line
from tests import runs

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


def test_a_configuration_from_python_is_that_of_the_command_line():
    words = ('--config=digits:code', '--config.rounds=7', '--config.federation.alpha=0.5', '--config.seeds=0,1')
    config = sfl.get_config('digits:code', {'federation.alpha': np.float64(0.5)}, rounds=np.int32(7), seeds=range(2))
    assert (type(config.federation.alpha), type(config.rounds), config.seeds) == (float, int, (0, 1))
    assert config.to_dict() == command_line.parse(['semisfl', *words]).config.to_dict()
    of_file = sfl.get_config(runs.ROOT / 'configs' / 'digits.py', model__split_index=None, lr=1)
    assert (of_file.data.name, of_file.model.split_index, of_file.lr) == ('digits', None, 1.0)
    official = sfl.get_config('digits', algorithm='fedprox', setting='official', lr=0.1)
    assert (official.lr, official.optimizer, official.rounds) == (0.1, 'adam', 200)
    assert 'lr' not in official.official_keys
    assert 'optimizer' in official.official_keys


@pytest.mark.parametrize(
    ('name', 'changes', 'named'),
    [
        ('digitz', {}, 'digitz.*digits'),
        ('digits', {'round': 7}, r'config\.round is .*config\.rounds'),
        ('digits', {'rounds': None}, r'config\.rounds=None'),
        ('digits', {'rounds': True}, r'config\.rounds=True'),
        ('digits', {'model.split_index': '2'}, r"config\.model\.split_index='2'"),
        ('digits', {'federation': {'alpha': 1}}, r'config\.federation .*config\.federation\.'),
    ],
)
def test_a_wrong_configuration_from_python_is_named(name, changes, named):
    with pytest.raises(sfl.UserError, match=named):
        sfl.get_config(name, changes)
    for function in (sfl.train, sfl.build):
        with pytest.raises(sfl.UserError, match="'digits'"):
            function('digits')


@pytest.mark.parametrize(
    ('name', 'text', 'named'),
    [
        ('some.py', 'x = 1\n', 'get_config'),
        ('some.py', FILE.format('return None'), 'None'),
        ('some.py', FILE.format('return {}'), 'dict'),
        ('some.py:code', FILE.format('return config'), "':code'"),
        ('config.json', '{"a": true}', 'by a run'),
    ],
)
def test_a_wrong_file_of_a_configuration_is_named(name, text, named, tmp_path):
    file = tmp_path / name.removesuffix(':code')
    file.write_text(text)
    for read in (sfl.get_config, lambda path: command_line.parse(['semisfl', f'--config={path}'])):
        with pytest.raises(sfl.UserError, match=f'^{re.escape(str(file))}.*{named}'):
            read(f'{tmp_path}/{name}')


def test_public_names_are_there():
    assert {name for name in sfl.__all__ if not hasattr(sfl, name)} == set()
    with pytest.raises(AttributeError, match="'losess'"):
        sfl.losess  # noqa: B018


STUDY = """
from semisfl_jax.configs.studies import table4
from semisfl_jax.studies import engine
study = table4.get_config('smoke').study.part(['SemiSFL'], ['Dir(0.1)'])
engine.run(study, {'rounds': 2, 'seeds': (0,), 'k_s': 2, 'k_u': 1}, 'studies')
"""


@pytest.mark.slow
def test_a_wheel_trains_and_makes_studies_in_an_empty_folder(tmp_path):
    source, site, empty = (tmp_path / name for name in ('source', 'site', 'empty'))
    empty.mkdir()
    left_out = shutil.ignore_patterns('.git', 'build', 'runs', 'results', '*.egg-info', '__pycache__', '.venv')
    shutil.copytree(runs.ROOT, source, ignore=left_out)
    pip = [sys.executable, '-m', 'pip', '--disable-pip-version-check']
    subprocess.run([*pip, 'wheel', '--quiet', '--no-deps', '-w', tmp_path, source], check=True)
    (wheel,) = tmp_path.glob('*.whl')
    subprocess.run([*pip, 'install', '--quiet', '--no-deps', '--target', site, wheel], check=True)
    assert sfl.__version__ in wheel.name
    assert (site / 'semisfl_jax' / 'py.typed').exists()
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


@pytest.mark.slow
def test_the_reference_has_all_public_names_and_pages_of_public_modules(folder):
    """docs/api.py."""
    pytest.importorskip('pdoc', reason="the API reference needs pdoc: pip install -e '.[docs]'")
    command = [sys.executable, runs.ROOT / 'docs' / 'api.py', folder]
    environment = {**os.environ, 'PYTHONPATH': str(runs.ROOT)}
    made = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert (made.returncode, made.stderr) == (0, '')
    page = (folder / 'semisfl_jax.html').read_text(encoding='utf-8')
    assert not re.search(r'ForwardRef|Alias for field|jaxlib\._jax|0x[0-9a-f]{8}', page)
    for name, thing in ((name, getattr(sfl, name)) for name in sfl.__all__ if name != '__version__'):
        made = folder / f'{thing.__name__.replace(".", "/")}.html'
        assert made.exists() if isinstance(thing, ModuleType) else f'>{name}<' in page, name
