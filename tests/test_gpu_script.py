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
