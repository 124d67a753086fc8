"""Files and values of a user: what is not a file, or too long, is refused at once and in one short line."""

import contextlib
import os
import signal
import time

import pytest
from PIL import Image

import launch
from semisfl_jax.config import failures
from semisfl_jax.core.errors import UserError
from semisfl_jax.data.decode import decode_chunk
from semisfl_jax.data.folder import source
from tests import runs
from tests.one_line import assert_one_line

IMAGE100 = {'data.name': 'image100', 'data.image_folder': 'somewhere'}
KEYS = {  # a key that names a file -> what a tiny digits run needs beside it
    'failures.trace': {},
    'data.partition_file': {},
    'data.class_list': IMAGE100,
}


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


def run(workdir, key, value):
    return launch.main(['launch.py', *runs.words(workdir, **KEYS[key]), f'--config.{key}={value}'])


@pytest.fixture
def pipe(tmp_path):
    path = tmp_path / 'pipe'
    os.mkfifo(path)
    return path


@pytest.mark.parametrize('key', KEYS)
@pytest.mark.parametrize('what', ['link to a device', 'pipe', 'folder', 'nothing'])
def test_what_is_no_file_is_not_read(key, what, tmp_path, pipe, capsys):
    (tmp_path / 'link').symlink_to('/dev/zero')
    (tmp_path / 'folder').mkdir()
    path, word = {
        'link to a device': (tmp_path / 'link', 'not a regular file'),
        'pipe': (pipe, 'not a regular file'),
        'folder': (tmp_path / 'folder', 'a folder'),
        'nothing': (tmp_path / 'none', 'No such file'),
    }[what]
    with at_most(20):
        assert run(tmp_path / 'run', key, path) == 2
    name = {'data.partition_file': 'the partition file'}.get(key, f'config.{key}')
    assert_one_line(capsys.readouterr().err, [name, str(path), word])
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('key', KEYS)
def test_a_file_that_is_too_long_is_not_read(key, tmp_path, capsys):
    path = tmp_path / 'file'
    path.touch()
    os.truncate(path, 2**34)  # a hole, which takes no room on the disk
    with at_most(20):
        assert run(tmp_path / 'run', key, path) == 2
    assert_one_line(capsys.readouterr().err, [str(path), '16 GiB', 'at most'])


@pytest.mark.parametrize('key', ['failures.trace', 'data.class_list'])
def test_a_file_that_is_no_text_ends_in_one_line(key, tmp_path, capsys):
    (tmp_path / 'file').write_bytes(b'round,client,done\n\xff\xfe\x00')
    assert run(tmp_path / 'run', key, tmp_path / 'file') == 2
    assert_one_line(capsys.readouterr().err, [f'config.{key}', 'not UTF-8 text'])


@pytest.mark.parametrize('content', ['', '\n', 'round,client,done\n1,' + '7' * 10_000 + ',0\n', '"' + 'x' * 200_000])
def test_a_trace_that_is_none_ends_in_one_short_line(content, tmp_path, capsys):
    (tmp_path / 'trace.csv').write_text(content)
    assert run(tmp_path / 'run', 'failures.trace', tmp_path / 'trace.csv') == 2
    error = capsys.readouterr().err
    assert_one_line(error, ['config.failures.trace'])
    assert len(error) < 600


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
    with pytest.raises(UserError, match=r'a\.png.* cannot be decoded'):
        decode_chunk([tmp_path / 'a.png'], (8, 8, 1), 8)


LONG = 'y' * 5000
ECHOED = {
    'unknown name': f'--config.algorithm={LONG}',
    'data set': f'--config.data.name={LONG}',
    'path of a trace': f'--config.failures.trace=/{LONG}',
    'path of a configuration': f'--config=configs/{LONG}.py',
    'settings': f'{runs.DIGITS}:{LONG}',
    'unknown key': f'--config.{LONG}=1',
    'stray word': LONG,
    'no number': f'--config.k_u={LONG}',
    'a large seed': f'--config.seed={"9" * 4000}',
    'devices': f'--config.cost.devices={LONG}',
    'seeds': f'--config.seeds={",".join(["3"] * 2500)}',
    'folder': f'--workdir=/proc/{"/".join([LONG[:200]] * 15)}',
}


@pytest.mark.parametrize('what', ECHOED)
def test_a_long_value_is_shortened(what, tmp_path, capsys):
    with at_most(60):
        assert launch.main(['launch.py', *runs.words(tmp_path / 'run'), ECHOED[what]]) == 2
    error = capsys.readouterr().err
    assert_one_line(error, [])
    assert len(error) < 1100
    assert not (tmp_path / 'run').exists()


def test_how_a_value_is_shortened():
    error = UserError(f"config.algorithm='{LONG}' is unknown; use one of semisfl, fedavg")
    assert str(error) == f"config.algorithm='{'y' * 60}... (5,000 characters)' is unknown; use one of semisfl, fedavg"
    plain = "the server's part cannot be cut; use less. " * 20
    assert str(UserError(plain)) == plain.strip()
    assert str(UserError('two\nlines')) == 'two lines'
