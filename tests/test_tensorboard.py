"""The file of TensorBoard's events, also on a full disk."""

from pathlib import Path

import pytest
from tensorboardX.proto.summary_pb2 import Summary

from semisfl_jax.training import outputs
from tests import runs

FULL = Path('/dev/full')  # takes nothing: no space left on the device
on_a_full_disk = pytest.mark.skipif(not FULL.exists(), reason='needs /dev/full')


def test_events_are_there_before_the_end(tmp_path, monkeypatch):
    """A file grows while the run goes on, not at each event."""
    now = [0.0]
    monkeypatch.setattr(outputs.time, 'monotonic', lambda: now[0])
    events = outputs.EventFile(tmp_path / 'tensorboard', 1)
    (path,) = (tmp_path / 'tensorboard').iterdir()
    scalars = Summary(value=[Summary.Value(tag='a', simple_value=1.0)])
    events.add(1, scalars)
    before = path.stat().st_size
    now[0] = outputs.FLUSH_SECONDS
    events.add(2, scalars)
    after = path.stat().st_size
    assert after > before
    events.add(3, scalars)
    assert path.stat().st_size == after
    events.close()
    assert path.stat().st_size > after


@on_a_full_disk
def test_a_full_disk_ends_a_run_with_one_line(tmp_path):
    """Neither a thread nor a hook at the exit of Python prints a traceback after it."""
    prelude = f"""
from tensorboardX import record_writer
record_writer.open_file = lambda path: open('{FULL}', 'wb')"""
    stopped = runs.run_process(tmp_path, prelude)
    assert stopped.returncode == 2
    advice = 'make room; a run then resumes by the same command'
    line = f'error: No space left on device: {tmp_path}; {advice}'
    assert stopped.stderr.splitlines() == [line]
