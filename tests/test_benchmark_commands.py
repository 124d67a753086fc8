"""The commands of the benchmarks: their help, and one line for a mistake."""

import subprocess
import sys

import pytest

from benchmarks import commands
from semisfl_jax.core.errors import UserError
from tests import runs
from tests.one_line import assert_one_line


def run(module, *words):
    command = [sys.executable, '-m', f'benchmarks.{module}', *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=runs.HANGS, check=False, cwd=runs.ROOT)


def test_the_folder_is_made(tmp_path):
    assert commands.folder(f'{tmp_path}/a/b').is_dir()
    assert commands.folder(f'{tmp_path}/a/b').is_dir(), 'or is there'
    (tmp_path / 'file').touch()
    with pytest.raises(UserError, match=r'--out=.*file'):
        commands.folder(f'{tmp_path}/file')


def test_help_is_the_docstring_and_the_flags():
    done = run('compiled', '--help')
    assert (done.returncode, done.stderr) == (0, '')
    assert 'Compiles every method with every model' in done.stdout
    assert '--target:' in done.stdout


@pytest.mark.parametrize(
    ('module', 'words', 'message'),
    [
        ('compiled', [], '--target is missing (see --help)'),
        ('passes', ['--repeats=0'], '--repeats=0: '),
        ('lowerings', ['--repeat=1'], "'repeat'"),
        ('peers', ['--workloads=vgg'], 'choose among cnn, mlp'),
        ('run', ['--no_torch', '--models=cnn', f'--out={__file__}'], '(it is a file); choose another folder'),
    ],
)
def test_a_mistake_is_one_line(module, words, message):
    done = run(module, *words)
    assert done.returncode == 2
    assert_one_line(done.stderr, [message])
