"""Two processes of four devices each compute one run: the numbers of one process, and one end for both."""

import json
import signal
import socket
from unittest import mock

import jax
import pytest

from semisfl_jax import config as config_lib
from semisfl_jax.base import hosts
from semisfl_jax.base.errors import UserError
from semisfl_jax.training import checkpoint, grid, loop
from tests.conftest import UNOPTIMIZED
from tests.helpers import runs
from tests.helpers.one_line import assert_one_line

pytestmark = pytest.mark.slow
FOUR = {'XLA_FLAGS': f'--xla_force_host_platform_device_count=4 {UNOPTIMIZED}'}
RUN = {'federation__num_active': 8, 'threshold': 0.115, 'diagnostics_every': 4}


def free_port():
    with socket.socket() as free:
        free.bind(('localhost', 0))
        return free.getsockname()[1]


def two_processes(workdir, preludes=('', ''), **changes):
    """Runs to the end of both. Each looks for its outputs in `workdir`/0 or 1, so that nothing is shared by chance."""
    changes = {
        **RUN,
        'parallel__devices': 8,
        'parallel__coordinator': f'localhost:{free_port()}',
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


def test_a_callback_of_process_0_stops_both_after_the_same_round(tmp_path):
    """The second has no callbacks."""
    prelude = """
from semisfl_jax.training import callbacks
callbacks.console = lambda: lambda event: 'enough' if getattr(event, 'lines', 0) and event.round == 2 else ''"""
    stopped = two_processes(tmp_path, (prelude, ''))
    assert [process.returncode for process in stopped] == [0, 0], stopped[0].stderr + stopped[1].stderr
    summary = json.loads((tmp_path / '0' / 'summary.json').read_text())
    assert (summary['rounds'], summary['stopped_early'], summary['processes']) == (2, 'enough', 2)
    assert checkpoint.rounds_saved(tmp_path / '0' / 'checkpoints') == [2]
    assert len(runs.records(tmp_path / '0')) == 2
    assert not (tmp_path / '1').exists()


def test_processes_that_would_compute_other_runs_stop(tmp_path):
    other = 'from semisfl_jax.data import Partition; Partition.content_hash = 2'
    for process in two_processes(tmp_path, ('', other)):
        assert process.returncode == 2
        assert 'the data or their split differ from those of process 0' in process.stderr
    assert not (tmp_path / '0').exists()


def test_processes_compare_configurations_settings_and_versions(monkeypatch):
    """What each gives to `check_same`, which the test above tries in two processes."""

    def compared(**changes):
        seen = {}
        monkeypatch.setattr(hosts, 'check_same', lambda what, values: seen.update({what: values}))
        loop._build_trials([grid.Planned(config_lib.resolve(runs.config(**changes)))], None)
        return seen

    def different(other):
        return {what.split()[-1] for what, values in usual.items() if values != other[what]}

    usual = compared()
    assert different(compared()) == set()
    assert different(compared(rounds=5)) == {'configurations'}
    assert different(compared(seed=1)) == {'configurations', 'split'}
    with jax.threefry_partitionable(False):
        assert different(compared()) == {'packages'}
    monkeypatch.setattr(loop, 'installed_versions', lambda: {'flax': '0.1'})
    assert different(compared()) == {'packages'}


# Of two threads that learn of the other's end, the main one, whose computation breaks, is the first
BROKEN = """
import jax, socket, sys, threading, time
hosts._SECONDS_TO_NOTICE = 3600
ended, receive = threading.Event(), socket.socket.recv
def receive_late(connection, size):
    received = receive(connection, size)
    if not received and connection.family != socket.AF_UNIX:
        ended.set()
        while not hasattr(sys, 'last_value'):
            time.sleep(0.01)
    return received
def update(*_):
    ended.wait()
    raise jax.errors.JaxRuntimeError('Gather failed: Connection reset by peer')
socket.socket.recv, frequency.update = receive_late, update"""


@pytest.mark.parametrize(
    ('dies', 'death', 'status', 'other'),
    [
        (1, 'os.kill(os.getpid(), 9)', -9, BROKEN),
        (0, "raise RuntimeError('a slip of the user')", 1, ''),
        (1, "raise jax.errors.JaxRuntimeError('a fault of the device')", 1, ''),
    ],
    ids=['killed', 'slip', 'fault'],
)
def test_a_process_that_dies_ends_the_other_in_one_line(tmp_path, dies, death, status, other):
    """Long before JAX's heartbeat, which prints its native stack; JAX may log that process 0 is gone."""
    preludes = ['from semisfl_jax import frequency; from semisfl_jax.base import hosts; hosts._SECONDS = 3600'] * 2
    preludes[1 - dies] += other
    preludes[dies] += f"""
import jax, os
def update(*_):
    {death}
frequency.update = update"""
    ended = two_processes(tmp_path, preludes)
    assert ended[dies].returncode == status
    if status == 1:
        assert ended[dies].stderr.splitlines()[-1].endswith(death.split("'")[1])  # of its traceback
    assert ended[1 - dies].returncode == 2
    joining, *logged, error = ended[1 - dies].stderr.splitlines()
    assert not logged or (dies == 0 and 'coordination' in logged[0]), logged  # JAX may have noticed first
    assert joining.startswith('joining')
    assert_one_line(f'{error}\n', (f'process {dies} has ended',))


@pytest.mark.parametrize('index', [0, 1])
def test_a_process_that_waits_alone_ends_in_one_line(tmp_path, index):
    impatient = 'from semisfl_jax.base import hosts; hosts.SECONDS_TO_MEET = 1'
    alone = runs.end_process(
        runs.start_process(
            tmp_path,
            impatient,
            FOUR,
            **RUN,
            parallel__devices=8,
            parallel__coordinator=f'localhost:{free_port()}',
            parallel__num_processes=2,
            parallel__process_id=index,
        )
    )
    assert alone.returncode == 2
    assert_one_line(f'{alone.stderr.splitlines()[-1]}\n', ('not all processes came within 1 s',))
    assert alone.stderr.count('\n') == 2
    assert not any(tmp_path.iterdir())


def test_an_unknown_host_is_an_error_at_once(monkeypatch):
    """JAX would try it for minutes, and abort."""
    monkeypatch.setattr(socket, 'getaddrinfo', mock.Mock(side_effect=socket.gaierror(-2, 'unknown')))
    with pytest.raises(UserError, match='nowhere'):
        hosts.join('nowhere:1234', 2, 1)


@pytest.mark.parametrize(
    ('host', 'addresses', 'bound'),
    [
        ('localhost', ['127.0.0.1', '::1'], 'localhost:1234'),
        ('127.0.0.2', ['127.0.0.2'], '127.0.0.2:1234'),
        ('[::1]', ['::1'], '[::1]:1234'),
        ('node1', ['127.0.1.1', '10.0.0.1'], None),  # which others must reach
    ],
)
def test_process_0_listens_on_this_host_alone_if_all_are_on_it(monkeypatch, host, addresses, bound):
    joined, found = mock.Mock(), [(0, 0, 0, '', (address, 1234)) for address in addresses]
    monkeypatch.setattr(socket, 'getaddrinfo', lambda *_: found)
    monkeypatch.setattr(jax.distributed, 'initialize', joined)
    hosts.join(f'{host}:1234', 2, 0)
    assert joined.call_args.kwargs['coordinator_address'] == f'{host}:1234'
    assert joined.call_args.kwargs.get('coordinator_bind_address') == bound
