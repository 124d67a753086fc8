"""The file of TensorBoard's events, also on a full disk."""

from pathlib import Path

import pytest

from semisfl_jax.training import outputs
from tests import runs

FULL = Path('/dev/full')  # takes nothing: no space left on the device
on_a_full_disk = pytest.mark.skipif(not FULL.exists(), reason='needs /dev/full')


def test_events_are_there_before_the_end(tmp_path):
    events = outputs.open_events(tmp_path / 'tensorboard', 1)
    (path,) = (tmp_path / 'tensorboard').iterdir()
    sizes = []
    for number in (1, 2):
        outputs.log_events(events, {'round': number, 'a': 1.0})
        sizes.append(path.stat().st_size)
    assert 0 < sizes[0] < sizes[1]
    events.close()


@on_a_full_disk
def test_a_full_disk_ends_a_run_with_one_line(tmp_path):
    """Neither a thread nor a hook at the exit of Python prints a traceback after it."""
    prelude = f"""
from tensorboardX import record_writer
record_writer.open_file = lambda path: open('{FULL}', 'wb')"""
    stopped = runs.run_process(tmp_path, prelude)
    assert stopped.returncode == 2
    advice = 'make room; a run then resumes by the same command'
    line = f'error: No space left on device; {advice}'
    assert stopped.stderr.splitlines() == [line]
