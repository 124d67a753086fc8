"""benchmarks/gpu.sh: every command that it would run has flags that exist."""

import ast
import re
import shlex
import subprocess

import pytest

from semisfl_jax import config as config_lib
from semisfl_jax.config import command_line
from semisfl_jax.preview import __main__ as preview
from tests.runs import HANGS, ROOT

SCRIPT = str(ROOT / 'benchmarks' / 'gpu.sh')


def script(*words):
    return subprocess.run(['bash', SCRIPT, *words], capture_output=True, text=True, timeout=HANGS, check=False)


def defined(module):
    """The names of the flags of a module, and the values of those that have a few, from its source."""
    flags = {}
    path = ROOT / (module.replace('.', '/') + '.py')
    if not path.exists():
        path = ROOT / module.replace('.', '/') / '__main__.py'
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, 'attr', '').startswith('DEFINE_'):
            choices = node.args[2] if node.func.attr == 'DEFINE_enum' else None
            literal = isinstance(choices, ast.List | ast.Tuple) and all(
                isinstance(e, ast.Constant) for e in choices.elts
            )
            flags[node.args[0].value] = ast.literal_eval(choices) if literal else None
    return flags


@pytest.mark.parametrize('sizes', [(), ('--quick',)])
def test_every_command_of_the_script_parses(sizes, tmp_path):
    listed = script(str(tmp_path / 'out'), '--list', *sizes)
    assert listed.returncode == 0, listed.stderr
    assert not (tmp_path / 'out').exists(), 'nothing was run'
    commands = [shlex.split(line) for line in listed.stdout.splitlines() if not line.startswith(('git', 'nvidia'))]
    modules = {command[2] for command in commands if command[1] == '-m'}
    names = {'lowerings', 'run', 'methods'}
    assert modules >= {f'benchmarks.{name}' for name in names} | {'semisfl_jax.plots', 'semisfl_jax.compare'}
    for command in commands:
        if command[1] == 'launch.py':
            parsed = command_line.parse(command[1:])
            config_lib.check(parsed.config)
            assert parsed.config.lr_rounds == 1000, 'legs follow the schedule of the whole run'
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


def test_the_paper_trains_in_legs_up_to_its_rounds(tmp_path):
    runs = [shlex.split(line) for line in script(str(tmp_path), '--list').stdout.splitlines() if 'launch.py' in line]
    rounds = [command_line.parse(words[1:]).config.rounds for words in runs]
    assert rounds == sorted(set(rounds))
    assert rounds[-1] == 1000


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """In place of the interpreter: does nothing, but says what it was asked for, and fails at a word in a file."""
    path, fails = tmp_path / 'python', tmp_path / 'fails'
    path.write_text(
        f'#!/bin/sh\necho "| $* |"\n[ ! -e {fails} ] || case "$*" in *$(cat {fails})*) echo broken; exit 7 ;; esac\n'
    )
    path.chmod(0o755)
    monkeypatch.setenv('PYTHON', str(path))
    return fails


def test_stages_are_done_once_and_a_failure_ends_no_other(stub, tmp_path):
    out = tmp_path / 'out'
    stub.write_text('benchmarks.methods')
    first = script(str(out))
    assert first.returncode == 1
    assert 'methods (at most 30 min) … FAILED with exit status 7: broken' in first.stdout
    (failed,) = re.findall(r'failed: (\S+); the same command runs them again', first.stderr)
    stages = sorted(path.stem for path in out.glob('*.done'))
    assert len(stages) == 12
    assert failed not in stages
    summary = (out / 'summary.md').read_text()
    assert f'- {failed}: not done' in summary
    assert 'mean nothing' not in summary
    assert '| -m benchmarks.lowerings --model=alexnet --precision=tf32 --steps=10 --repeats=5 |' in summary

    stub.unlink()
    again = script(str(out))
    assert again.returncode == 0, again.stderr
    assert again.stdout.count('done before') == 10, 'all but the one that failed, figures and the comparison'
    assert 'not done' not in (out / 'summary.md').read_text()


def test_small_sizes_and_those_that_count_share_no_folder(stub, tmp_path):
    out = str(tmp_path / 'out')
    assert script(out, '--quick').returncode == 0
    assert 'these numbers mean nothing' in (tmp_path / 'out' / 'summary.md').read_text()
    before = {path.name: path.read_bytes() for path in (tmp_path / 'out').iterdir()}
    done = script(out)
    assert done.returncode == 2
    assert done.stderr == (
        f'error: {out} has results of the quick sizes, this would add the full ones; choose another folder\n'
    )
    assert {path.name: path.read_bytes() for path in (tmp_path / 'out').iterdir()} == before


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (('--fast',), "error: '--fast' is not an option"),
        (('one', 'two'), "error: 'two' is a second folder after 'one'"),
    ],
)
def test_wrong_words_are_one_line(words, message):
    done = script(*words)
    assert done.returncode == 2
    assert done.stderr.startswith(message)
    assert done.stderr.count('\n') == 1
