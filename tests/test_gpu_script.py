"""benchmarks/gpu.sh: every command that it would run has flags that exist, and it does what is left to do."""

import ast
import re
import shlex
import subprocess

import pytest

from semisfl_jax import config as config_lib
from semisfl_jax.config import command_line
from semisfl_jax.preview import __main__ as preview
from tests.one_line import assert_one_line
from tests.runs import HANGS, ROOT

SCRIPT = str(ROOT / 'benchmarks' / 'gpu.sh')


def script(*words):
    command = ['bash', SCRIPT, *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=False)


def defined(module):
    """The names of the flags of a module, and the values of those that have a few, from its source."""
    flags = {}
    path = ROOT / module.replace('.', '/')
    path = path / '__main__.py' if path.is_dir() else path.with_suffix('.py')
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, 'attr', '').startswith('DEFINE_'):
            choices = None
            if node.func.attr == 'DEFINE_enum' and isinstance(node.args[2], ast.List | ast.Tuple):
                choices = [getattr(element, 'value', None) for element in node.args[2].elts]
            flags[node.args[0].value] = choices
    return flags


@pytest.mark.parametrize('sizes', [(), ('--quick',)])
def test_every_command_of_the_script_parses(sizes, tmp_path):
    listed = script(tmp_path / 'out', '--list', *sizes)
    assert listed.returncode == 0, listed.stderr
    assert not (tmp_path / 'out').exists(), 'nothing was run'
    commands = [shlex.split(line) for line in listed.stdout.splitlines() if not line.startswith(('git', 'nvidia'))]
    modules = {command[2] for command in commands if command[1] == '-m'}
    assert modules >= {'benchmarks.lowerings', 'benchmarks.run', 'benchmarks.methods', 'semisfl_jax.compare'}
    rounds = []
    for command in commands:
        if command[1] == 'launch.py':
            config = command_line.parse(command[1:]).config
            config_lib.check(config)
            assert config.lr_rounds == 1000, 'legs follow the schedule of the whole run'
            rounds.append(config.rounds)
        elif command[1:3] == ['-m', 'semisfl_jax.preview']:
            if '--target=cpu' in command:  # of others, the compiler need not be installed
                preview.request(command[2:])
        elif command[1] == '-m':
            flags = defined(command[2])
            for word in command[3:]:
                if match := re.fullmatch(r'--(\w+)(?:=(.*))?', word):
                    name, value = match.groups()
                    assert name in flags, word
                    assert flags[name] is None or value in flags[name], word
    assert rounds == sorted(set(rounds))
    assert sizes or rounds[-1] == 1000


def test_stages_are_done_once_and_a_failure_ends_no_other(tmp_path, monkeypatch):
    """In place of the interpreter: what does nothing, but says what it was asked for, and fails at a word in a file."""
    out, python, fails = (tmp_path / name for name in ('out', 'python', 'fails'))
    fail = f'[ ! -e {fails} ] || case "$*" in *$(cat {fails})*) echo broken; exit 7 ;; esac'
    python.write_text(f'#!/bin/sh\necho "| $* |"\n{fail}\n')
    python.chmod(0o755)
    monkeypatch.setenv('PYTHON', str(python))
    fails.write_text('benchmarks.methods')
    first = script(out)
    assert first.returncode == 1
    assert 'exit status 7: broken' in first.stdout
    stages = sorted(path.stem for path in out.glob('*.done'))
    assert len(stages) == 12
    assert not [stage for stage in stages if 'methods' in stage]
    summary = (out / 'summary.md').read_text()
    assert 'not done' in summary
    assert 'mean nothing' not in summary
    assert '| -m benchmarks.lowerings --model=alexnet --precision=tf32 --steps=10 --repeats=5 |' in summary

    fails.unlink()
    again = script(out)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count('done before') == 10, 'all but the one that failed, figures and the comparison'
    assert 'not done' not in (out / 'summary.md').read_text()
    for words, named in ((out, '--quick'), str(out)), ((out, '--fast'), "'--fast'"):  # other sizes need another folder
        done = script(*words)
        assert done.returncode == 2
        assert_one_line(done.stderr, [named])
