"""Locks where a file system has none, paths of other places than a file system, and files written whole."""

import contextlib
import errno
import fcntl
import os
import signal
from pathlib import Path
from unittest import mock

import fsspec
import numpy as np
import pytest
from etils.epath import backend

from semisfl_jax import config as config_lib
from semisfl_jax import data
from semisfl_jax.base import errors, file_io
from semisfl_jax.base.errors import UserError
from semisfl_jax.data import cache
from semisfl_jax.lab.studies import engine, plan
from semisfl_jax.models import weights
from semisfl_jax.training import load, loop, outputs
from tests.helpers import runs, settings, studies_toy
from tests.helpers.one_line import assert_one_line

CHEAP = {'algorithm': 'supervised_only'}


def refuses(call, *words):
    """Expects that the call ends with one line that has the words."""
    with pytest.raises(UserError) as caught:
        call()
    assert_one_line(f'error: {caught.value}\n', words)


def without_locks(number):
    """What flock does in a file system without."""
    return mock.Mock(side_effect=OSError(number, os.strerror(number)))


def enter(context):
    with context:
        pass


def begin(folder):
    """As a run does."""
    enter(outputs.lock_folder(folder, runs.config(), None))


@pytest.mark.parametrize('wanted', [begin, outputs.busy])
def test_what_keeps_a_folder_from_being_locked_is_named(tmp_path, monkeypatch, wanted):
    lock = tmp_path / '.lock'
    for make in (lambda: lock.symlink_to(tmp_path / 'elsewhere'), lambda: lock.symlink_to('/dev/null'), lock.mkdir):
        make()
        refuses(lambda: wanted(tmp_path), str(lock), 'delete it')
        lock.rmdir() if lock.is_dir() else lock.unlink()
    lock.touch()
    for number in (errno.ENOLCK, errno.EOPNOTSUPP):
        monkeypatch.setattr(fcntl, 'flock', without_locks(number))
        refuses(lambda: wanted(tmp_path), str(lock), os.strerror(number), '--workdir')


def test_without_flock_a_lock_that_another_machine_left_says_what_to_delete(tmp_path, monkeypatch):
    monkeypatch.setattr(fcntl, 'flock', without_locks(errno.ENOSYS))
    monkeypatch.setattr(file_io, '_LOOK', 0.01)
    lock = tmp_path / '.lock'
    with file_io.lock(lock):
        refuses(lambda: enter(file_io.lock(lock)), str(lock), f'process {os.getpid()} on')
    assert not lock.exists()
    lock.write_text('4711\nnode7\n')
    refuses(lambda: begin(tmp_path), '4711 on node7, has ended, delete the file')
    busy = tmp_path / plan.RUNS / 'busy'
    busy.mkdir(parents=True)
    lock.rename(busy / '.lock')
    session, job = engine.Session(tmp_path / plan.RUNS, None, print, None), plan.Job('busy', 'digits', {}, (0,), 1)
    refuses(lambda: session._claim([plan.Task(job, '', str)], contextlib.ExitStack()), 'process 4711 on node7')


@pytest.mark.parametrize('sign', '*?[\\')
def test_a_path_below_which_checkpoints_are_useless_is_refused(tmp_path, sign):
    folder = tmp_path / f'a{sign}b]' / 'run'
    refuses(lambda: loop.train(runs.config(**CHEAP), folder), f"'{sign}'", str(folder), '--workdir')
    assert not list(tmp_path.iterdir())


REMOTE = 'gs://bucket/name'
WRITES = {
    'workdir': lambda: loop.train(runs.config(**CHEAP), REMOTE),
    'study': lambda: engine.run(studies_toy.study(), {}, REMOTE),
    'cache_dir': lambda: cache.fetch(cache.Source('toy', 'toy', 2, None), REMOTE),
    'image_folder': lambda: data.load(settings.data_options(name='folder', image_folder=REMOTE, image_size=8)),
    'partition': lambda: data.save(data.make_partition(*made()), REMOTE),
    'run': lambda: load.load_trained(REMOTE),
}


def made():
    config = config_lib.resolve(runs.config(**CHEAP))
    return data.load(config.data), config


@pytest.mark.parametrize('name', WRITES)
def test_a_remote_path_is_refused_where_something_is_written(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    refuses(WRITES[name], REMOTE, 'file system')
    assert not list(tmp_path.iterdir())


def test_the_cache_of_programs_and_data_is_not_remote(monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', 'gs://bucket')
    refuses(cache.default_dir, 'XDG_CACHE_HOME', 'gs://bucket')


@pytest.fixture
def bucket(monkeypatch):
    """Remote files, in memory."""
    files = fsspec.filesystem('memory')
    monkeypatch.setattr(backend.fsspec_backend, '_get_filesystem', lambda name: files)
    yield files
    files.rm('/', recursive=True)


def test_weights_partitions_and_text_are_read_from_a_remote_path(bucket, tmp_path):
    dataset, config = made()
    partition = data.make_partition(dataset, config)
    data.save(partition, tmp_path / 'partition.npz')
    np.savez(tmp_path / 'weights.npz', **{'conv1.weight': np.ones(3)})
    for name in ('partition.npz', 'weights.npz'):
        bucket.pipe(f'gs://bucket/{name}', (tmp_path / name).read_bytes())
    bucket.pipe('gs://bucket/trace.csv', b'round,client,done\n')
    assert data.load_partition('gs://bucket/partition.npz').content_hash == partition.content_hash
    np.testing.assert_array_equal(weights.read('gs://bucket/weights.npz')['conv1.weight'], np.ones(3))
    assert file_io.read_text('gs://bucket/trace.csv', 'config.failures.trace', 100) == 'round,client,done\n'
    refuses(
        lambda: file_io.read('gs://bucket/trace.csv', 'config.failures.trace', 3), 'gs://bucket/trace.csv', '18 bytes'
    )
    refuses(lambda: file_io.read('gs://bucket/none', 'config.failures.trace'), 'gs://bucket/none', 'cannot be read')
    refuses(lambda: file_io.read('gs://bucket', 'config.failures.trace'), 'gs://bucket', 'folder')


def test_what_a_remote_path_lacks_is_one_line():
    refuses(lambda: file_io.read(REMOTE, 'config.model.weights'), REMOTE, 'gcsfs')


def test_a_folder_whose_name_is_no_text_is_refused(tmp_path, monkeypatch):
    """Also where it is only above the folder of the run."""
    odd = tmp_path / os.fsdecode(b'a\xff')
    refuses(lambda: loop.train(runs.config(), odd / 'run'), 'UTF-8', 'a\\xff/run')
    odd.mkdir()
    monkeypatch.chdir(odd)
    refuses(lambda: loop.train(runs.config(), 'run'), 'UTF-8')
    assert not any(odd.iterdir())
    assert file_io.expand_home(tmp_path / 'ä', 'folder') == tmp_path / 'ä'


def test_what_a_killed_process_left_goes_and_a_process_that_is_overtaken_wins_or_loses(tmp_path, monkeypatch):
    (tmp_path / '.a[1].json-4711').write_text('half')
    (tmp_path / '.b.json-4711').write_text('of another file')
    file = tmp_path / 'a[1].json'
    file_io.write(file, b'one')
    assert sorted(path.name for path in tmp_path.iterdir()) == ['.b.json-4711', 'a[1].json']
    replace = Path.replace

    def overtaken(path, target):
        monkeypatch.undo()
        monkeypatch.setattr(os, 'getpid', lambda: 4712)
        file_io.write(file, b'of another')
        return replace(path, target)

    monkeypatch.setattr(Path, 'replace', overtaken)
    file_io.write(file, b'two')
    assert file.read_bytes() == b'of another'
    with pytest.raises(FileNotFoundError):
        file_io.write(tmp_path / 'nowhere' / 'c', b'')


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
    with pytest.raises(UserError, match='delete it'), outputs.lock_folder(tmp_path, runs.config(), None):
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
