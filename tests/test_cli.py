"""The command line: help, and one clear line for every mistake."""

import collections
import errno
import json
import os
import signal
import subprocess
import sys

import pytest

import launch
from semisfl_jax import compare
from semisfl_jax import config as config_lib
from semisfl_jax import cuts as cuts_command
from semisfl_jax.config import command_line, load
from semisfl_jax.core import errors
from semisfl_jax.plots import __main__ as plots_command
from tests import runs
from tests.one_line import assert_one_line


def test_help_shows_every_configuration_key_flag_and_output(capsys):
    assert launch.main(['launch.py', '--help']) == 0
    text = capsys.readouterr().out
    for path in (runs.ROOT / 'configs').glob('*.py'):
        assert (f'configs/{path.name}' in text) == (path.stem != '__init__')
    for word in ('--workdir', '--config.KEY=VALUE', 'metrics.jsonl', 'checkpoints', 'Ctrl-C'):
        assert word in text
    assert len(text.splitlines()) < 58
    assert max(map(len, text.splitlines())) <= 120


def test_a_folder_whose_name_is_too_long(capsys, tmp_path):
    assert launch.main(['launch.py', runs.DIGITS, f'--workdir={tmp_path}/{"a" * 300}']) == 2
    error = capsys.readouterr().err
    assert error.startswith(f'error: File name too long: {str(tmp_path)[:20]}')
    assert error.count('\n') == 1


@pytest.mark.parametrize('encoding', ['latin-1', 'ascii'])
def test_a_terminal_that_is_not_in_utf_8(tmp_path, encoding):
    """It shows question marks for what it does not have."""
    command = 'import sys; from semisfl_jax import errors; sys.exit(errors.exit_status(lambda: print("90.1 ± 0.3 …")))'
    result = subprocess.run(
        [sys.executable, '-c', command],
        capture_output=True,
        env=os.environ | {'PYTHONIOENCODING': encoding, 'PYTHONPATH': str(runs.ROOT)},
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.decode(encoding) == {'latin-1': '90.1 ± 0.3 ?\n', 'ascii': '90.1 ? 0.3 ?\n'}[encoding]


def test_the_help_of_the_script_on_such_a_terminal():
    result = subprocess.run(
        [sys.executable, 'launch.py', '--help'],
        capture_output=True,
        cwd=runs.ROOT,
        env=os.environ | {'PYTHONIOENCODING': 'ascii'},
    )
    assert (result.returncode, result.stderr) == (0, b'')
    assert b'configs/digits.py' in result.stdout


def test_a_folder_in_the_home_folder(tmp_path, monkeypatch):
    """A shell leaves ~ as it is in --config=~/x.py."""
    monkeypatch.setenv('HOME', str(tmp_path))
    (tmp_path / 'mine.py').touch()
    assert load.find('~/mine.py') == tmp_path / 'mine.py'


@pytest.mark.parametrize('command', ['launch', 'compare', 'plots', 'plots --out', 'cuts'])
def test_the_home_folder_of_nobody(tmp_path, capsys, command):
    place = '~nobody-of-this-name/x'
    words = {
        'launch': (launch.main, [runs.DIGITS, f'--workdir={place}']),
        'compare': (compare.main, [place]),
        'plots': (plots_command.main, [place, '--out=x']),
        'plots --out': (plots_command.main, ['x', f'--out={place}']),
        'cuts': (cuts_command.main, [runs.DIGITS, f'--workdir={place}']),
    }
    main, line = words[command]
    assert main([command, *line]) == 2
    assert_one_line(capsys.readouterr().err, ['~nobody-of-this-name', 'no home folder of'])


def test_a_configuration_that_is_no_file(capsys, monkeypatch):
    monkeypatch.chdir(runs.ROOT)
    assert launch.main(['launch.py', '--config=configs']) == 2
    assert_one_line(capsys.readouterr().err, ['there is no configuration file configs'])


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (
            ['configs/digit_scenes.py', '--config.data.tasks=semseg,depth'],
            """write --config.data.tasks="('semseg','depth')" for several""",
        ),
        (
            ['configs/digits.py', '--config.cost.devices=jetson_nano,jetson_tx2'],
            """write --config.cost.devices="('jetson_nano','jetson_tx2')" for several""",
        ),
        (['configs/digits.py', '--config.model.weights=/nope'], 'is not an option of semisfl; leave it empty'),
    ],
)
def test_what_to_write_instead(capsys, monkeypatch, words, message):
    monkeypatch.chdir(runs.ROOT)
    assert launch.main(['launch.py', f'--config={words[0]}', *words[1:]]) == 2
    assert_one_line(capsys.readouterr().err, [message])


def test_a_full_disk_is_one_line(capsys):
    def write():
        raise OSError(errno.ENOSPC, 'No space left on device', 'runs/a')

    assert errors.exit_status(write) == 2
    assert capsys.readouterr().err == (
        'error: No space left on device: runs/a; make room; a run then resumes by the same command\n'
    )


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


def test_overrides_arrive_with_their_type():
    command = command_line.parse(
        [
            'launch.py',
            runs.DIGITS,
            '--workdir=x/y',
            '--config.seed=3',
            '--config.lr=1e-3',
            '--config.federation.num_active',
            '4',
            '--config.nesterov=false',
            '--noconfig.ema_warmup',
            '--config.model.split_index=1',
        ]
    )
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


# What is wrong -> what is added to the command line of a tiny digits run, and words of the message.
MISTAKES = {
    'unknown flag': (['--wrkdir=x'], ["flag 'wrkdir'"]),
    'unknown key': (['--config.seeed=1'], ['config.seeed', 'did you mean config.seed']),
    'key without its group': (['--config.num_labeled=1'], ['did you mean config.data.num_labeled']),
    'group as a key': (['--config.data=x'], ['config.data is a group of keys; set one of them, such as config.data.']),
    'file of a run': (['--config={reference}/config.json'], ['was written by a run', '--workdir={reference}']),
    'key within a key': (['--config.seed.x=1'], ['config.seed.x is not a key']),
    'wrong type': (['--config.seed=one'], ['--config.seed=one', 'int']),
    'wrong boolean': (['--config.nesterov=perhaps'], ['--config.nesterov=perhaps', 'bool']),
    'no value': (['--config.seed'], ['--config.seed']),
    'stray word': (['digits'], ["'digits'"]),
    'unknown model': (['--config.model.name=resnet'], ["'resnet'", 'small_cnn']),
    'more labels than samples': (['--config.data.num_labeled=2000'], ['2000', '1437']),
    'split index too large': (['--config.model.split_index=4'], ['split_index=4', '1 to 3']),
    'model too large for the images': (['--config.model.name=vgg13'], ['vgg13', '8x8', 'data.image_size']),
    'data set that is not prepared': (['--config.data.name=svhn_cropped', '--config.data.data_dir={tmp}'], ['svhn']),
    'no partition file': (['--config.data.partition_file={tmp}/none.npz'], ['none.npz']),
    'partition file for another data set': (
        [
            '--config.data.partition_file={reference}/partition.npz',
            '--config.data.name=mnist',
            '--config.data.fake=True',
        ],
        ["'digits'", "'mnist'"],
    ),
    'unknown settings': ([f'{runs.DIGITS}:paperr'], ["'paperr'"]),
    'no such configuration': (['--config=configs/digit.py'], ['configs/digit.py']),
}


@pytest.fixture(scope='module')
def reference(tmp_path_factory):
    """A short finished run."""
    folder = tmp_path_factory.mktemp('reference') / 'run'
    assert runs.run(folder, algorithm='supervised_only', rounds=1) == 0
    return folder


@pytest.mark.parametrize('mistake', MISTAKES)
def test_a_mistake_ends_in_one_line_and_an_untouched_folder(mistake, reference, tmp_path, capsys):
    added, words = MISTAKES[mistake]
    added, words = ([word.format(tmp=tmp_path, reference=reference) for word in each] for each in (added, words))
    workdir = tmp_path / 'run'
    status = launch.main(['launch.py', *runs.words(workdir), *added])
    assert status == 2
    assert_one_line(capsys.readouterr().err, words)
    assert not workdir.exists()


def test_the_configuration_is_asked_for(capsys):
    assert launch.main(['launch.py', '--config.seed=1']) == 2
    assert_one_line(capsys.readouterr().err, ['--config is missing', 'configs/digits.py'])


def test_a_folder_of_another_configuration_is_left_alone(reference, capsys):
    before = runs.files(reference)
    assert runs.run(reference, algorithm='supervised_only', rounds=9, lr=0.03, seed=4) == 2
    assert_one_line(capsys.readouterr().err, ['lr: 0.02 -> 0.03', 'seed: 0 -> 4'])
    assert runs.files(reference) == before


def test_a_folder_whose_split_is_another_one_is_left_alone(reference, tmp_path, capsys):
    assert runs.run(tmp_path / 'run', algorithm='supervised_only', rounds=1, seed=1) == 0
    other = tmp_path / 'run' / 'partition.npz'
    other.write_bytes((reference / 'partition.npz').read_bytes())
    before = runs.files(tmp_path / 'run')
    capsys.readouterr()
    assert runs.run(tmp_path / 'run', algorithm='supervised_only', rounds=2, seed=1) == 2
    assert_one_line(capsys.readouterr().err, ['split', 'partition.npz'])
    assert runs.files(tmp_path / 'run') == before


def test_a_folder_with_damaged_checkpoints_alone_is_left_alone(tmp_path, capsys):
    folder = tmp_path / 'run'
    assert runs.run(folder, algorithm='supervised_only', rounds=1) == 0
    for path in (folder / 'checkpoints').rglob('*'):
        if path.is_file():
            os.truncate(path, 0)
    before = runs.files(folder)
    capsys.readouterr()
    assert runs.run(folder, algorithm='supervised_only', rounds=2) == 2
    assert_one_line(capsys.readouterr().err, ['no checkpoint', 'cannot be read'])
    assert runs.files(folder) == before


@pytest.mark.parametrize('name', ['config.json', 'metrics.jsonl'])
def test_a_folder_that_is_no_run_is_left_alone(tmp_path, capsys, name):
    (tmp_path / name).write_text('{"half')
    before = runs.files(tmp_path)
    assert runs.run(tmp_path) == 2
    assert_one_line(capsys.readouterr().err, [name])
    assert runs.files(tmp_path) == before


def test_a_file_in_the_way(tmp_path, capsys):
    (tmp_path / 'file').write_text('text')
    assert runs.run(tmp_path / 'file' / 'run') == 2
    assert_one_line(capsys.readouterr().err, [str(tmp_path / 'file'), '--workdir'])
    assert runs.run('/proc/semisfl') == 2  # looks writable to root, and is not
    assert_one_line(capsys.readouterr().err, ['/proc/semisfl', '--workdir'])


def test_no_permission_to_write(tmp_path, capsys, monkeypatch):
    folder = tmp_path / 'folder'
    folder.mkdir()
    folder.chmod(0o555)
    if os.access(folder, os.W_OK):  # root may write anywhere: see the folder as anybody else does
        real = os.access
        monkeypatch.setattr(os, 'access', lambda path, mode: real(path, mode) and str(path) != str(folder))
    assert runs.run(folder / 'run') == 2
    assert_one_line(capsys.readouterr().err, ['no permission', str(folder)])
    assert runs.run(folder) == 2
    assert_one_line(capsys.readouterr().err, ['no permission', str(folder)])
    assert not list(folder.iterdir())


def test_without_a_workdir_the_same_experiment_finds_its_folder_again(tmp_path, monkeypatch, capsys):
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
    _, *words = runs.words(tmp_path / 'run', algorithm='supervised_only', rounds=1)
    counts.clear()
    assert launch.main(['launch.py', f'--config={file}', *words]) == 0
    assert log.read_text() == 'once once'
    assert counts == {'check': 1, 'resolve': 1}


@pytest.mark.parametrize('words', [['--help', 'federation.alpha'], ['-h', 'lr', 'momentum'], ['--help', 'uda']])
def test_help_on_keys(words, capsys):
    assert launch.main(['launch.py', *words]) == 0
    text = capsys.readouterr().out
    assert all(f'config.{word}' in text for word in words[1:])
    assert launch.main(['launch.py', '--help', 'momentun']) == 2
    assert_one_line(capsys.readouterr().err, ['config.momentun', 'did you mean config.momentum?'])


def test_a_bug_still_shows_its_traceback(tmp_path):
    result = runs.run_process(
        tmp_path / 'run', 'from semisfl_jax import loop; loop.train_resolved = lambda *_, **__: 1 / 0'
    )
    assert result.returncode == 1
    assert 'ZeroDivisionError' in result.stderr
