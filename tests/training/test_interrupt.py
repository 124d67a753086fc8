"""Signals: what asks a run to stop, what ends it at once, and a terminal that is closed."""

import os
import pty
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from semisfl_jax.training import interrupt
from tests.helpers import runs


def asked(request, signum):
    """Sends a signal, and waits until another thread has taken note."""
    os.kill(os.getpid(), signum)
    while request.signum != signum:
        time.sleep(0.001)


@contextmanager
def handled(**handlers):
    """Signals handled in this way for the duration of the block."""
    before = {name: signal.signal(getattr(signal, name), handler) for name, handler in handlers.items()}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(getattr(signal, name), handler)


@pytest.mark.parametrize('name', [signum.name for signum in interrupt.SIGNALS if signum != signal.SIGINT])
def test_every_signal_that_would_end_a_run_asks_it_to_stop(name, capsys):
    """Many come again before the round is done: only SIGINT and SIGTERM, a second time, do not wait for it."""
    signum = getattr(signal, name)
    with handled(**{name: signal.SIG_DFL}):
        with interrupt.listen() as request:
            asked(request, signum)
            if signum != signal.SIGTERM:
                os.kill(os.getpid(), signum)
                asked(request, signal.SIGTERM)
                os.kill(os.getpid(), signum)
        assert signal.getsignal(signum) == signal.SIG_DFL
    assert capsys.readouterr().err.count('stopping after this round') == 1


def test_signals_that_are_ignored_or_have_a_handler_stay_as_they_are():
    calls = []
    own = {'SIGHUP': signal.SIG_IGN, 'SIGUSR1': lambda *_: calls.append(1), 'SIGUSR2': signal.SIG_DFL}
    with handled(**own), interrupt.listen() as request:
        for signum in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR1):
            os.kill(os.getpid(), signum)
        asked(request, signal.SIGUSR2)
        assert calls == [1, 1]


def test_a_terminal_that_is_closed_ends_no_run(tmp_path):
    """SIGHUP comes, and whatever is printed from then on fails."""
    code = """
import fcntl, sys, termios, time
from semisfl_jax.training import interrupt
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
with interrupt.listen() as request:
    print('listening', flush=True)
    while not request.signum:
        time.sleep(0.01)
    print('a round more', flush=True)
    print('a bar', file=sys.stderr, flush=True)
    open(sys.argv[1], 'w').write(str(request.signum))
"""
    terminal, end = pty.openpty()
    command, streams = (
        [sys.executable, '-c', code, str(tmp_path / 'saved')],
        dict.fromkeys(('stdin', 'stdout', 'stderr'), end),
    )
    with handled(SIGHUP=signal.SIG_DFL):
        child = subprocess.Popen(command, cwd=runs.ROOT, start_new_session=True, **streams)
    os.close(end)
    said = b''
    while not said.endswith(b'\n'):  # closed before the end of the line, it would fail in printing that
        said += os.read(terminal, 100)
    assert said.strip() == b'listening'
    os.close(terminal)
    assert child.wait(runs.HANGS) == 0
    assert (tmp_path / 'saved').read_text() == str(int(signal.SIGHUP))


@pytest.mark.slow
def test_a_second_signal_ends_at_once():
    code = """
import os, signal, time
from semisfl_jax.training import interrupt
with interrupt.listen() as request:
    os.kill(os.getpid(), signal.SIGINT)
    while not request.signum:
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(600)
print('was not ended')
"""
    ended = subprocess.run([sys.executable, '-c', code], cwd=runs.ROOT, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (130, '')
    assert 'interrupt again' in ended.stderr
