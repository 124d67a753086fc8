"""The command: its help, one clear line for every mistake, its folder, and files of its user."""

import collections
import contextlib
import errno
import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from PIL import Image

import launch
from semisfl_jax import compare
from semisfl_jax import config as config_lib
from semisfl_jax import cuts as cuts_command
from semisfl_jax.config import command_line, failures, load
from semisfl_jax.core import errors, file_io
from semisfl_jax.core.errors import UserError
from semisfl_jax.data.decode import decode_chunk
from semisfl_jax.data.folder import source
from semisfl_jax.plots import __main__ as plots_command
from semisfl_jax.training import outputs
from tests import runs
from tests.one_line import assert_one_line

CHEAP = {'algorithm': 'supervised_only', 'rounds': 1}


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


def test_the_command_as_a_process(tmp_path):
    """On a terminal that is not in UTF-8."""
    result = subprocess.run(
        [sys.executable, 'launch.py', *runs.words(tmp_path / 'run', **CHEAP)],
        capture_output=True,
        cwd=runs.ROOT,
        env=os.environ | {'PYTHONIOENCODING': 'ascii', 'JAX_PLATFORMS': 'cpu'},
    )
    assert (result.returncode, result.stderr) == (0, b'')
    assert b'student accuracy' in result.stdout
    assert (tmp_path / 'run' / 'summary.json').exists()


@pytest.mark.parametrize(('encoding', 'shown'), [('latin-1', '90.1 ± 0.3 ?\n'), ('ascii', '90.1 ? 0.3 ?\n')])
def test_question_marks_for_what_a_terminal_does_not_have(encoding, shown, monkeypatch):
    printed = io.BytesIO()
    monkeypatch.setattr(sys, 'stdout', io.TextIOWrapper(printed, encoding, write_through=True))
    assert errors.exit_status(lambda: print('90.1 ± 0.3 …')) == 0
    assert printed.getvalue().decode(encoding) == shown


@pytest.mark.slow
def test_output_that_nobody_reads():
    """`command | head` ends as if by SIGPIPE, without a word."""
    code = """
import sys
from semisfl_jax.core.errors import exit_status
def talk():
    for number in range(100_000):
        print(number)
sys.exit(exit_status(talk))"""
    talking = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert talking.stdout.readline() == b'0\n'
    talking.stdout.close()
    assert talking.stderr.read() == b''
    assert talking.wait() == 128 + signal.SIGPIPE


@pytest.mark.slow
def test_a_bug_still_shows_its_traceback(tmp_path):
    prelude = 'from semisfl_jax import loop; loop.train_resolved = lambda *_, **__: 1 / 0'
    result = runs.run_process(tmp_path / 'run', prelude)
    assert result.returncode == 1
    assert 'ZeroDivisionError' in result.stderr


def test_overrides_arrive_with_their_type():
    words = '--workdir=x/y --config.seed=3 --config.lr=1e-3 --config.federation.num_active 4 --config.nesterov=false'
    words += ' --noconfig.ema_warmup --config.model.split_index=1'
    command = command_line.parse(['launch.py', runs.DIGITS, *words.split()])
    config = command.config
    assert (command.name, command.workdir) == ('digits', 'x/y')
    assert (config.seed, config.lr, config.federation.num_active) == (3, 0.001, 4)
    assert (config.nesterov, config.ema_warmup, config.model.split_index) == (False, False, 1)
    assert config.is_locked


def test_a_configuration_imports_what_lies_beside_it(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, 'path', list(sys.path))
    (tmp_path / 'code_of_mine.py').write_text('ALPHA = 0.75\n')
    words = 'import code_of_mine', 'from configs import digits', 'def get_config():', '    config = digits.get_config()'
    words += '    config.federation.alpha = code_of_mine.ALPHA', '    return config'
    (tmp_path / 'digits_of_mine.py').write_text('\n'.join(words))
    command = command_line.parse(['launch.py', f'--config={tmp_path}/digits_of_mine.py'])
    assert command.config.federation.alpha == 0.75
    monkeypatch.setenv('HOME', str(tmp_path))  # a shell leaves ~ as it is in --config=~/x.py
    assert load.find('~/digits_of_mine.py') == tmp_path / 'digits_of_mine.py'


# --- mistakes

LONG = 'y' * 5000
MISTAKES = {  # what is added to the command line of a tiny digits run -> what the one line names
    '--wrkdir=x': 'wrkdir',
    'digits': "'digits'",
    '--config.seed': '--config.seed',
    '--config.seed=one': '--config.seed=one',
    '--config.nesterov=perhaps': '--config.nesterov=perhaps',
    '--config.batchsize=4': 'config.batchsize config.batch_size',
    '--config.num_labeled=1': 'config.num_labeled config.data.num_labeled',
    '--config.data=x': 'config.data config.data.',
    '--config.seed.x=1': 'config.seed.x',
    '--config.seeds=all': "'all' --config.seeds=",
    '--config.seeds=': "'' --config.seeds=",
    '--config.seeds=(0,1.5)': 'config.seeds 1.5',
    '--config.seeds=0,1,0': 'config.seeds 0',
    '--config.algorithm=FedAvg': "'FedAvg' 'fedavg'",
    '--config.model.name=smal_cnn': "'smal_cnn' 'small_cnn'",
    '--config.data.name=digitz': "'digitz' 'digits'",
    '--config.cost.devices=jetson_nan': "'jetson_nan' 'jetson_nano'",
    '--config.cost.devices=jetson_nano,jetson_tx2': """--config.cost.devices="('jetson_nano','jetson_tx2')\"""",
    '--config.data.num_labeled=2000': '2000 1437',
    '--config.model.split_index=4': 'split_index=4',
    '--config.model.name=vgg13': 'vgg13 8x8 data.image_size',
    '--config.data.name=svhn_cropped --config.data.data_dir={tmp}': 'svhn',
    '--config.data.partition_file={run}/partition.npz --config.data.name=mnist --config.data.fake=True': 'digits mnist',
    '--config={run}/config.json': '--workdir={run}',
    f'{runs.DIGITS}:papre': "'papre' 'paper'",
    '--config=configs': 'configs',
    '--config=configs/digit.py:code': 'configs/digit.py digits',
    '--config=table4': 'table4 studies/table4',
    f'--config={runs.ROOT}/configs/studies/table4.py:smoek': "'smoek' 'smoke'",
    f'--config.algorithm={LONG}': 'config.algorithm',
    f'--config.failures.trace=/{LONG}': 'config.failures.trace',
    f'--config=configs/{LONG}.py': 'configs/',
    f'--config.{LONG}=1': 'config.yyy',
    f'--config.seed={"9" * 4000}': 'config.seed',
    f'--config.seeds={",".join(["3"] * 2500)}': 'config.seeds',
    f'--workdir=/proc/{"/".join([LONG[:200]] * 15)}': '/proc',
    '--workdir=/proc/semisfl': '/proc/semisfl --workdir',  # looks writable to root, and is not
    f'--workdir=/tmp/{"a" * 300}': 'File name too long',
    '--workdir=~nobody-of-this-name/x': '~nobody-of-this-name',
}


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
    """A short finished run."""
    folder = tmp_path_factory.mktemp('finished') / 'run'
    assert runs.run(folder, **CHEAP) == 0
    return folder


@pytest.mark.parametrize('mistake', MISTAKES, ids=lambda words: words[-40:])
def test_a_mistake_ends_in_one_line_and_an_untouched_folder(mistake, finished, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(runs.ROOT)
    added, named = (words.format(tmp=tmp_path, run=finished).split() for words in (mistake, MISTAKES[mistake]))
    workdir = tmp_path / 'run'
    assert launch.main(['launch.py', *runs.words(workdir), *(added or [mistake])]) == 2
    error = capsys.readouterr().err
    assert_one_line(error, named)
    assert len(error) < 1100  # long values are shortened
    assert not workdir.exists()


def test_the_configuration_is_asked_for(capsys):
    assert launch.main(['launch.py', '--config.seed=1']) == 2
    assert_one_line(capsys.readouterr().err, ['--config', 'configs/digits.py'])


def test_how_a_value_is_shortened():
    error = UserError(f"config.algorithm='{LONG}' is unknown; use one of semisfl, fedavg")
    assert str(error) == f"config.algorithm='{'y' * 60}... (5,000 characters)' is unknown; use one of semisfl, fedavg"
    plain = "the server's part cannot be cut; use less. " * 20
    assert str(UserError(plain)) == plain.strip()
    assert str(UserError('two\nlines')) == 'two lines'


@pytest.mark.parametrize(
    ('main', 'words'),
    [
        (compare.main, ['{}']),
        (plots_command.main, ['{}', '--out=x']),
        (plots_command.main, ['x', '--out={}']),
        (cuts_command.main, [runs.DIGITS, '--workdir={}']),
    ],
)
def test_the_home_folder_of_nobody(main, words, capsys):
    assert main(['command', *(word.format('~nobody-of-this-name/x') for word in words)]) == 2
    assert_one_line(capsys.readouterr().err, ['~nobody-of-this-name'])


# --- the folder


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


def test_a_start_executes_checks_and_resolves_a_configuration_once(tmp_path, monkeypatch):
    counts = collections.Counter()

    def counted(module, name):
        function = getattr(module, name)

        def count(*arguments, **others):
            counts[name] += 1
            return function(*arguments, **others)

        for place in (module, config_lib):
            monkeypatch.setattr(place, name, count)

    counted(sys.modules['semisfl_jax.config.checks'], 'check')
    counted(sys.modules['semisfl_jax.config.resolve'], 'resolve')
    file, log = tmp_path / 'mine.py', tmp_path / 'executed'
    file.write_text(
        'from semisfl_jax.configs.digits import get_config as digits\n'
        f"def write(word):\n    with open({str(log)!r}, 'a') as file:\n        file.write(word)\n"
        "write('once ')\ndef get_config():\n    write('once')\n    return digits()\n"
    )
    _, *words = runs.words(tmp_path / 'run', **CHEAP)
    counts.clear()
    assert launch.main(['launch.py', f'--config={file}', *words]) == 0
    assert log.read_text() == 'once once'
    assert counts == {'check': 1, 'resolve': 1}


def full(*arguments):
    raise OSError(errno.ENOSPC, 'No space left on device')  # as a write raises it: without a name


def test_a_full_disk_is_named_and_leaves_what_was_there(tmp_path, monkeypatch, capsys):
    file = tmp_path / 'a.txt'
    file_io.write(file, b'before')
    monkeypatch.setattr(os, 'fsync', full)

    def write():
        with file_io.writing('--out'):
            file_io.write(file, b'after')

    assert errors.exit_status(write) == 2
    assert_one_line(capsys.readouterr().err, [str(file), 'No space left'])
    assert [path.name for path in tmp_path.iterdir()] == ['a.txt']
    assert file.read_bytes() == b'before'


def test_a_run_on_a_full_disk_keeps_its_folder(tmp_path, monkeypatch):
    """Once there is room, the same command goes on there."""
    monkeypatch.setattr(os, 'fsync', full)
    with pytest.raises(OSError, match='No space left'), outputs.lock_folder(tmp_path, runs.config(), None):
        pass
    monkeypatch.undo()
    (tmp_path / '.lock').unlink()
    (tmp_path / '.lock').mkdir()
    with pytest.raises(UserError, match='--workdir'), outputs.lock_folder(tmp_path, runs.config(), None):
        pass


# --- files of a user


@contextlib.contextmanager
def at_most(seconds):
    """Ends what hangs: a read from a pipe that nobody writes to, or from a file without an end."""

    def stop(*_):
        raise TimeoutError(f'still at it after {seconds} seconds')

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_what_is_no_text_file_is_not_read(tmp_path):
    (tmp_path / 'link').symlink_to('/dev/zero')
    (tmp_path / 'folder').mkdir()
    os.mkfifo(tmp_path / 'pipe')
    (tmp_path / 'binary').write_bytes(b'round,client,done\n\xff\xfe\x00')
    (tmp_path / 'long').touch()
    os.truncate(tmp_path / 'long', 2**34)  # a hole, which takes no room on the disk
    for name in ('link', 'folder', 'pipe', 'binary', 'long', 'none'):
        with at_most(20), pytest.raises(UserError, match=f"^config.key '{tmp_path}/{name}'"):
            file_io.read_text(tmp_path / name, 'config.key', 2**20)


@pytest.mark.parametrize('key', ['failures.trace', 'data.partition_file', 'data.class_list'])
def test_a_run_reads_no_pipe_and_no_file_that_is_too_long(key, tmp_path, capsys):
    more = {'data.name': 'image100', 'data.image_folder': 'x'} if key == 'data.class_list' else {}
    os.mkfifo(tmp_path / 'pipe')
    (tmp_path / 'long').touch()
    os.truncate(tmp_path / 'long', 2**34)
    for name in ('pipe', 'long'):
        with at_most(20):
            assert runs.run(tmp_path / 'run', **more, **{key: tmp_path / name}) == 2
        assert_one_line(capsys.readouterr().err, [str(tmp_path / name), key.split('.')[-1].split('_')[0]])
        assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('content', ['', '\n', 'round,client,done\n1,' + '7' * 10_000 + ',0\n', '"' + 'x' * 200_000])
def test_a_trace_that_is_none_ends_in_one_short_line(content, tmp_path):
    trace = tmp_path / 'trace.csv'
    trace.write_text(content)
    with pytest.raises(UserError, match=r'^config\.failures\.trace') as error:
        failures.read_trace(str(trace), failures.hash_of(str(trace)))
    assert len(str(error.value)) < 600


def test_a_long_trace_is_read_in_time(tmp_path):
    lines = [f'{round_},{client},0.5\n' for round_ in range(1, 1001) for client in range(300)]
    (tmp_path / 'trace.csv').write_text('round,client,done\n' + ''.join(lines))
    start = time.monotonic()
    trace = str(tmp_path / 'trace.csv')
    assert len(failures.read_trace(trace, failures.hash_of(trace))) == 1000
    assert time.monotonic() - start < 60


def test_a_pipe_among_images_is_no_image(tmp_path):
    for split in ('train', 'val'):
        for name in ('n01', 'n02'):
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            Image.new('RGB', (9, 9)).save(folder / 'a.png')
            os.mkfifo(folder / 'b.png')
    with at_most(20):
        train, _ = source('image100', tmp_path, ('train', 'val'), ('n01', 'n02'), 8).open()
        (chunk,) = train.chunks()
    assert chunk[0].shape == (2, 8, 8, 3)


def test_an_image_that_swells_ends_in_one_line(tmp_path, monkeypatch):
    Image.new('L', (64, 64)).save(tmp_path / 'a.png')
    monkeypatch.setattr(Image, 'MAX_IMAGE_PIXELS', 1000)
    with pytest.raises(UserError, match=r'a\.png'):
        decode_chunk([tmp_path / 'a.png'], (8, 8, 1), 8)
