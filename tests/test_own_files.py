"""Files are written whole or not at all, and what keeps one from being written is said with its name."""

import errno
import os

import pytest

from semisfl_jax.core import file_io
from semisfl_jax.core.errors import UserError
from semisfl_jax.training import outputs
from tests import runs


def full(*arguments):
    raise OSError(errno.ENOSPC, 'No space left on device')  # as a write raises it: without a name


def test_a_full_disk_is_named_and_leaves_what_was_there(tmp_path, monkeypatch):
    file = tmp_path / 'a.txt'
    file_io.write(file, b'before')
    monkeypatch.setattr(os, 'fsync', full)
    with pytest.raises(OSError, match='No space left') as caught, file_io.writing('--out'):
        file_io.write(file, b'after')
    assert caught.value.filename == str(file)  # `errors.exit_status` says to make room
    assert [path.name for path in tmp_path.iterdir()] == ['a.txt']
    assert file.read_bytes() == b'before'


def test_what_another_folder_would_help_against_says_so(tmp_path):
    (tmp_path / 'a.txt').mkdir()
    message = r'cannot write .*/a.txt: Is a directory; choose another --out'
    with pytest.raises(UserError, match=message), file_io.writing('--out'):
        file_io.write(tmp_path / 'a.txt', b'content')


def test_a_run_on_a_full_disk_keeps_its_folder(tmp_path, monkeypatch):
    """Once there is room, the same command goes on there."""
    monkeypatch.setattr(os, 'fsync', full)
    with pytest.raises(OSError, match='No space left'), outputs.lock_folder(tmp_path, runs.config(), None):
        pass
    monkeypatch.undo()
    (tmp_path / '.lock').unlink()
    (tmp_path / '.lock').mkdir()
    with pytest.raises(UserError, match='choose another --workdir'), outputs.lock_folder(tmp_path, runs.config(), None):
        pass
