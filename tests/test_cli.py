"""The command: its help, one clear line for every mistake, its folder, and files of its user."""

import collections
import errno
import json
import os
import signal
import subprocess
import sys
from unittest import mock

import pytest
from PIL import Image

import launch
from semisfl_jax import algorithms
from semisfl_jax import config as config_lib
from semisfl_jax.config import command_line, failures
from semisfl_jax.core import errors, file_io
from semisfl_jax.core.errors import UserError
from semisfl_jax.data.decode import decode_chunk
from semisfl_jax.training import experiment, inputs, loop, outputs
from tests import runs
from tests.one_line import assert_one_line


def test_help(capsys):
    assert launch.main(['launch.py', '--help']) == 0
    text = capsys.readouterr().out
    for path in (runs.ROOT / 'configs').glob('*.py'):
        assert (f'configs/{path.name}' in text) == (path.stem != '__init__')
    for word in ('--workdir', '--config.KEY=VALUE', 'metrics.jsonl', 'checkpoints', 'Ctrl-C'):
        assert word in text
    assert launch.main(['launch.py', '-h', 'federation.alpha', 'uda']) == 0
    text = capsys.readouterr().out
    assert all(f'config.{word}' in text for word in ('federation.alpha', 'uda.tsa'))
    assert launch.main(['launch.py', '--help', 'momentun']) == 2
    assert_one_line(capsys.readouterr().err, ['config.momentun', 'config.momentum'])
    assert launch.main(['launch.py', '--config.seed=1']) == 2
    assert_one_line(capsys.readouterr().err, ['--config=digits'])


def test_the_command_as_a_process(tmp_path):
    """On a CPU that it divides, and a terminal that is not in UTF-8, which shows '?' for '±'."""
    words = runs.words(tmp_path / 'run', algorithm='supervised_only', rounds=1, seeds='0,1', parallel__devices=2)
    environment = os.environ | {'PYTHONIOENCODING': 'ascii', 'JAX_PLATFORMS': 'cpu'}
    command = [sys.executable, 'launch.py', *words]
    result = subprocess.run(command, cwd=runs.ROOT, env=environment, capture_output=True, check=False)
    assert (result.returncode, result.stderr) == (0, b'')
    assert b'% ? ' in result.stdout
    assert (tmp_path / 'run' / 'summary.json').exists()


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


def test_output_that_nobody_reads(tmp_path, monkeypatch):
    """`command | head` ends as if by SIGPIPE, without a word."""
    with (tmp_path / 'out').open('w') as out:
        monkeypatch.setattr(sys, 'stdout', out)
        assert errors.exit_status(mock.Mock(side_effect=BrokenPipeError)) == 128 + signal.SIGPIPE


def test_overrides_arrive_with_their_type():
    words = '--workdir=x/y --config.lr=1e-3 --config.federation.num_active 4 --config.nesterov=false'
    words += ' --noconfig.ema_warmup --config.model.split_index=1'
    command = command_line.parse(['launch.py', runs.DIGITS, *words.split()])
    config = command.config
    assert (command.name, command.workdir, config.is_locked) == ('digits', 'x/y', True)
    assert (config.lr, config.federation.num_active, config.model.split_index) == (0.001, 4, 1)
    assert (config.nesterov, config.ema_warmup) == (False, False)


def test_a_configuration_imports_what_lies_beside_it(tmp_path, monkeypatch):
    """And a shell leaves ~ as it is in --config=~/x.py."""
    monkeypatch.setattr(sys, 'path', list(sys.path))
    monkeypatch.setenv('HOME', str(tmp_path))
    (tmp_path / 'code_of_mine.py').write_text('from configs.digits import get_config\n')
    (tmp_path / 'digits_of_mine.py').write_text('from code_of_mine import get_config\n')
    assert command_line.parse(['launch.py', '--config=~/digits_of_mine.py']).config.data.name == 'digits'


LONG = 'y' * 5000
MISTAKES = {  # what is added to the command line of a tiny digits run -> what the one line names
    '--wrkdir=x': 'wrkdir',
    'digits': "'digits'",
    '--config.seed': '--config.seed',
    '--config.seed=one': '--config.seed=one',
    '--config.num_labeled=1': 'config.num_labeled config.data.num_labeled',
    '--config.data=x': 'config.data config.data.',
    '--config.algorithm=FedAvg': "'FedAvg' 'fedavg'",
    '--config.cost.devices=jetson_nano,jetson_tx2': """--config.cost.devices="('jetson_nano','jetson_tx2')\"""",
    '--config.data.num_labeled=2000': '2000 1437',
    '--config.model.name=vgg13': 'vgg13 8x8 data.image_size',
    '--config.data.name=svhn_cropped --config.data.data_dir={tmp}': 'svhn',
    '--config.data.partition_file={run}/partition.npz --config.data.name=mnist --config.data.fake=True': 'digits mnist',
    '--config={run}/config.json': '--workdir={run}',
    f'{runs.DIGITS}:papre': "'papre' 'paper'",
    '--config=configs/digit.py:code': 'configs/digit.py digits',
    '--config=table4': 'table4 studies/table4',
    f'--config={runs.ROOT}/configs/studies/table4.py:smoek': "'smoek' 'smoke'",
    f'--config.algorithm={LONG}': 'config.algorithm',
    f'--workdir=/proc/{"/".join([LONG[:200]] * 15)}': '/proc',
    '--workdir=/proc/semisfl': '/proc/semisfl --workdir',  # looks writable to root, and is not
    f'--workdir=/tmp/{"a" * 300}': 'File name too long',
    '--workdir=~nobody-of-this-name/x': '~nobody-of-this-name',
}


@pytest.mark.parametrize('mistake', MISTAKES, ids=lambda words: words[-40:])
def test_a_mistake_ends_in_one_line_and_an_untouched_folder(mistake, reference, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(runs.ROOT)
    added, named = (words.format(tmp=tmp_path, run=reference).split() for words in (mistake, MISTAKES[mistake]))
    workdir = tmp_path / 'run'
    assert launch.main(['launch.py', *runs.words(workdir), *(added or [mistake])]) == 2
    error = capsys.readouterr().err
    assert_one_line(error, named)
    assert len(error) < 1100  # long values are shortened
    assert not workdir.exists()


def test_a_folder_that_cannot_be_written_to(tmp_path, capsys, monkeypatch):
    (tmp_path / 'file').write_text('text')
    folder = tmp_path / 'folder'
    folder.mkdir()
    folder.chmod(0o555)
    if os.access(folder, os.W_OK):  # root may write anywhere: see the folder as anybody else does
        real = os.access
        monkeypatch.setattr(os, 'access', lambda path, mode: real(path, mode) and str(path) != str(folder))
    for workdir, where in ((tmp_path / 'file' / 'run', tmp_path / 'file'), (folder / 'run', folder), (folder, folder)):
        assert runs.run(workdir) == 2
        assert_one_line(capsys.readouterr().err, [str(where)])
    assert not list(folder.iterdir())


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


def test_a_full_disk_is_named_and_leaves_what_was_there(tmp_path, monkeypatch, capsys):
    file = tmp_path / 'a.txt'
    file_io.write(file, b'before')
    full = OSError(errno.ENOSPC, 'No space left on device')  # as a write raises it: without a name
    monkeypatch.setattr(os, 'fsync', mock.Mock(side_effect=full))

    def write():
        with file_io.writing('--out'):
            file_io.write(file, b'after')

    assert errors.exit_status(write) == 2
    assert_one_line(capsys.readouterr().err, [str(file), 'No space left'])
    assert [path.name for path in tmp_path.iterdir()] == ['a.txt']
    assert file.read_bytes() == b'before'
    with pytest.raises(OSError, match='No space left'), outputs.lock_folder(tmp_path, runs.config(), None):
        pass
    monkeypatch.undo()
    (tmp_path / '.lock').unlink()
    (tmp_path / '.lock').mkdir()
    with pytest.raises(UserError, match='--workdir'), outputs.lock_folder(tmp_path, runs.config(), None):
        pass


@pytest.fixture
def endless(tmp_path):
    """A pipe, from which a read would never return, so that the process ends then; and a hole of a file."""
    os.mkfifo(tmp_path / 'pipe')
    (tmp_path / 'long').touch()
    os.truncate(tmp_path / 'long', 2**34)
    signal.alarm(60)
    yield [tmp_path / 'pipe', tmp_path / 'long']
    signal.alarm(0)


def test_what_is_no_text_file_is_not_read(tmp_path, endless):
    (tmp_path / 'link').symlink_to('/dev/zero')
    (tmp_path / 'folder').mkdir()
    (tmp_path / 'binary').write_bytes(b'round,client,done\n\xff\xfe\x00')
    for path in (*endless, *(tmp_path / name for name in ('link', 'folder', 'binary', 'none'))):
        with pytest.raises(UserError, match=f"^config.key '{path}'"):
            file_io.read_text(path, 'config.key', 2**20)


@pytest.mark.parametrize('key', ['failures.trace', 'data.partition_file', 'data.class_list'])
def test_a_run_reads_no_pipe_and_no_file_that_is_too_long(key, tmp_path, capsys, endless):
    more = {'data.name': 'image100', 'data.image_folder': 'x'} if key == 'data.class_list' else {}
    for path in endless:
        assert runs.run(tmp_path / 'run', **more, **{key: path}) == 2
        assert_one_line(capsys.readouterr().err, [str(path), key.split('.')[-1].split('_')[0]])
        assert not (tmp_path / 'run').exists()


def test_a_trace_that_is_none_ends_in_one_short_line(tmp_path):
    trace = tmp_path / 'trace.csv'
    for content in ('', 'round,client,done\n1,' + '7' * 10_000 + ',0\n', '"' + 'x' * 200_000):
        trace.write_text(content)
        with pytest.raises(UserError, match=r'^config\.failures\.trace') as error:
            failures.read_trace(str(trace), failures.hash_of(str(trace)))
        assert len(str(error.value)) < 600


def test_an_image_that_swells_ends_in_one_line(tmp_path, monkeypatch):
    Image.new('L', (64, 64)).save(tmp_path / 'a.png')
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 1000)
    with pytest.raises(UserError, match=r'a\.png'):
        decode_chunk([tmp_path / 'a.png'], (8, 8, 1), 8)
