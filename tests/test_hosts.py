"""Two processes of four devices each compute one run: the numbers of one process, and one end for both."""

import signal
import socket

import pytest

from tests import runs
from tests.conftest import UNOPTIMIZED

pytestmark = pytest.mark.slow
FOUR = {'XLA_FLAGS': f'--xla_force_host_platform_device_count=4 {UNOPTIMIZED}'}
RUN = {'federation__num_active': 8, 'threshold': 0.115, 'diagnostics_every': 4}


def two_processes(workdir, preludes=('', ''), **changes):
    """Runs to the end of both. Each looks for its outputs in `workdir`/0 or 1, so that nothing is shared by chance."""
    with socket.socket() as free:
        free.bind(('localhost', 0))
        port = free.getsockname()[1]
    changes = {
        **RUN,
        'parallel__devices': 8,
        'parallel__coordinator': f'localhost:{port}',
        'parallel__num_processes': 2,
        **changes,
    }
    started = [
        runs.start_process(workdir / str(index), preludes[index], FOUR, **changes, parallel__process_id=index)
        for index in (0, 1)
    ]
    return [runs.end_process(process) for process in started]


def test_stopped_and_gone_on_two_processes_give_the_numbers_of_one_device(tmp_path):
    """Each holds images of its own clients alone. A signal to one stops both; and the second learns of the checkpoint
    from the first, as it has no folder."""
    prelude = f"""
import os
from semisfl_jax import frequency
update = frequency.update
def stopping(state, *arguments):
    if state.rounds == 1:
        os.kill(os.getpid(), {int(signal.SIGTERM)})
    return update(state, *arguments)
frequency.update = stopping"""
    on_host = {'data__residency': 'host'}
    stopped = two_processes(tmp_path, ('', prelude), rounds=200, **on_host)
    assert [process.returncode for process in stopped] == [128 + signal.SIGTERM] * 2
    done = len(runs.records(tmp_path / '0'))
    assert done in (2, 3)
    first, second = two_processes(tmp_path, **on_host)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert f'round {done}/4' not in first.stdout
    assert 'round 4/4' in first.stdout
    assert 'round' not in second.stdout
    assert not (tmp_path / '1').exists()  # the second process wrote nothing

    assert runs.run(tmp_path / 'one', **RUN) == 0
    one, two = runs.records(tmp_path / 'one'), runs.records(tmp_path / '0')
    for record, other in zip(one, two, strict=True):
        assert record.keys() == other.keys()
        for key in record.keys() - set(runs.TIMES):
            counts = key.endswith('_accuracy') or key == 'mask_rate'  # an image on the edge may fall on either side
            assert other[key] == pytest.approx(record[key], **({'abs': 0.02} if counts else {'rel': 1e-4})), key
    assert any(0 < record['mask_rate'] < 1 for record in one)
    runs.assert_diagnostics_close(tmp_path / 'one', tmp_path / '0', 4)


@pytest.mark.parametrize(
    ('other', 'what'),
    [
        ("sys.argv.append('--config.seed=1')", 'configurations'),
        ("sys.argv.append('--config.rounds=5')", 'configurations'),
        ('from semisfl_jax.data import Partition; Partition.content_hash = 2', 'the data or their split'),
    ],
)
def test_processes_that_would_compute_other_runs_stop(tmp_path, other, what):
    for process in two_processes(tmp_path, ('', other)):
        assert process.returncode == 2
        assert f'{what} differ from those of process 0' in process.stderr
    assert not (tmp_path / '0').exists()


def test_a_process_that_dies_ends_the_other(tmp_path):
    """JAX sees to it; without it the other would wait for good."""
    soon = 'from semisfl_jax.core import hosts; hosts._SECONDS = 5'
    dying = f"""{soon}
import os
from semisfl_jax import frequency
frequency.update = lambda *_: os._exit(7)"""
    first, second = two_processes(tmp_path, (soon, dying))
    assert second.returncode == 7
    assert first.returncode not in (0, 7)
