"""The command: a process, a start that does everything once, a folder that is found again."""

import collections
import json
import os
import runpy
import subprocess
import sys

import pytest

import launch
import semisfl_jax
from semisfl_jax import algorithms
from semisfl_jax import config as config_lib
from semisfl_jax.training import experiment, inputs, loop
from tests.helpers import runs
from tests.helpers.one_line import assert_one_line


@pytest.mark.parametrize(
    ('program', 'words', 'typed'),
    [
        ('launch.py', '', 'python launch.py --config='),
        ('/opt/bin/semisfl', 'study', 'semisfl --config='),
        ('/opt/semisfl_jax/__main__.py', '', 'python -m semisfl_jax --config='),
        ('/opt/bin/semisfl', 'compare', 'semisfl compare ['),
        ('launch.py', 'plots', 'python launch.py plots '),
        ('/opt/semisfl_jax/__main__.py', 'cuts', 'python -m semisfl_jax cuts '),
        ('/opt/semisfl_jax/verify.py', 'verify', 'python -m semisfl_jax.verify '),
    ],
)
def test_help_shows_the_command_as_it_was_typed(program, words, typed, capsys):
    assert launch.main([program, *words.split(), '--help']) == 0
    text = capsys.readouterr().out
    assert typed in text
    assert 'python launch.py' not in text.replace(typed, '') or typed.startswith('python launch.py')


@pytest.mark.parametrize('name', ['compare', 'cuts', 'plots', 'preview', 'verify'])
def test_every_tool_is_a_module_too(name, capsys, monkeypatch):
    module = f'semisfl_jax.{name}'
    monkeypatch.setattr(sys, 'argv', [f'/opt/semisfl_jax/{name}.py', '--help'])
    monkeypatch.delitem(sys.modules, module, raising=False)
    with pytest.raises(SystemExit, match='0'):
        runpy.run_module(module, run_name='__main__', alter_sys=True)
    assert f'python -m {module} ' in capsys.readouterr().out


@pytest.mark.parametrize(
    ('words', 'named'),
    [
        ('trian --config=digits', ["'trian'", "'train'"]),
        ('train --config=studies/table4:smoke --config.study_rows=x', ['table4 is a study', 'semisfl study --config=']),
        ('study --config=digits --config.rounds=0', ['digits is a single run', 'semisfl train --config=']),
        ('sweep --config=studies/table4:smoke --config.study_rows=x', ['semisfl study']),
        ('compare --lost=3 a', ['--lost', "'last'"]),
        ('compare --last=x a', ['--last=x', 'whole number']),
        ('compare a --format', ['--format', '--format=VALUE']),
        ('verify --rerun=-1 a', ['--rerun=-1']),
        ('cuts --config=digits --config.rouds=3', ['config.rouds', 'config.rounds']),
        ('--config=digits --config.lr=0.1 -- --config=digits --config.lr=-1', ['config.lr=-1.0']),
        ('--config=digits -- --config=digits --config.rounds=9', ['folder digits-', '--workdir']),
        ('--config=digits --', ['--config is missing']),
    ],
)
def test_a_mistake_in_words_is_one_line(words, named, capsys):
    assert runs.command(*words.split()) == 2
    assert_one_line(capsys.readouterr().err, named)


def test_version(capsys):
    assert runs.command('--version') == 0
    assert capsys.readouterr().out == f'semisfl {semisfl_jax.__version__}\n'


def test_the_command_as_a_process(tmp_path):
    """On a CPU that it divides, and a terminal that is not in UTF-8, which shows '?' for '±'."""
    words = runs.words(tmp_path / 'run', algorithm='supervised_only', rounds=1, seeds='0,1', parallel__devices=2)
    environment = os.environ | {'PYTHONIOENCODING': 'ascii', 'JAX_PLATFORMS': 'cpu'}
    command = [sys.executable, 'launch.py', *words]
    result = subprocess.run(command, cwd=runs.ROOT, env=environment, capture_output=True, check=False)
    assert (result.returncode, result.stderr) == (0, b'')
    assert b'mean ? s.e. of 2 seeds' in result.stdout
    assert (tmp_path / 'run' / 'summary.json').exists()


def test_runs_of_one_command_are_one_program_where_they_can_be(tmp_path, monkeypatch, capsys):
    groups, train = [], loop.train_together
    monkeypatch.setattr(
        loop, 'train_together', lambda group, **given: groups.append(len(group)) or train(group, **given)
    )
    settings = {'algorithm': 'supervised_only', 'rounds': 1}
    one, *others = (
        runs.words(tmp_path / name, **settings, **changes)
        for name, changes in {'a': {'lr': 0.1}, 'b': {'lr': 1e30}, 'c': {'k_s': 3}, 'd': {'lr': 0.2}}.items()
    )
    assert runs.command(*one, *(word for words in others for word in ('--', *words))) == 3
    assert groups == [3, 1]
    printed = capsys.readouterr()
    assert {path.parent.name for path in tmp_path.glob('*/summary.json')} == {'a', 'c', 'd'}
    assert 'error: b: loss_supervised is nan in round 1' in printed.err
    assert 'error: 1 of 4 runs failed' in printed.err
    assert 'd: student accuracy: final ' in printed.out


def test_a_start_does_everything_once(tmp_path, monkeypatch):
    """It executes, checks and resolves a configuration, and builds model and method; participation once a round and
    seed, and that of the round after the last, as inputs are drawn a round ahead."""
    counts = collections.Counter()

    def counted(function):
        return lambda *args, **named: (counts.update([function.__name__]), function(*args, **named))[1]

    checked, resolved = (sys.modules[f'semisfl_jax.config.{name}'] for name in ('checks', 'resolve'))
    places = {'check': (config_lib, checked), 'resolve': (config_lib, resolved)}
    places |= {'build_model': (experiment,), 'build': (algorithms,), 'participation': (inputs,)}
    for name, module in ((name, module) for name, modules in places.items() for module in modules):
        monkeypatch.setattr(module, name, counted(getattr(module, name)))
    file, log = tmp_path / 'mine.py', tmp_path / 'executed'
    file.write_text(
        'from semisfl_jax.configs.digits import get_config as digits\n'
        f"def write(word):\n    with open({str(log)!r}, 'a') as file:\n        file.write(word)\n"
        "write('once ')\ndef get_config():\n    write('once')\n    return digits()\n"
    )
    _, *words = runs.words(tmp_path / 'run', algorithm='fedavg', rounds=2, seeds=(0, 1))
    counts.clear()
    assert launch.main(['launch.py', f'--config={file}', *words]) == 0
    assert log.read_text() == 'once once'
    assert counts == {'check': 1, 'resolve': 1, 'build_model': 1, 'build': 1, 'participation': 2 * (2 + 1)}


def test_a_bug_still_shows_its_traceback(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, 'train_resolved', lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        runs.run(tmp_path)


@pytest.mark.slow
def test_without_a_workdir_the_same_experiment_finds_its_folder_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ['--config.algorithm=supervised_only', '--config.k_s=1', '--config.eval_every=1']
    for rounds in (1, 2):
        assert launch.main(['launch.py', runs.DIGITS, *small, f'--config.rounds={rounds}']) == 0
    (folder,) = (tmp_path / 'runs').iterdir()
    assert folder.name.startswith('digits-')
    assert json.loads((folder / 'summary.json').read_text())['rounds'] == 2
    assert launch.main(['launch.py', runs.DIGITS, *small, '--config.rounds=1', '--config.seed=1']) == 0
    assert len(list((tmp_path / 'runs').iterdir())) == 2
