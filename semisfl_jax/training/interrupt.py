"""Stops a run after the current round at the first Ctrl-C, or another signal that asks a process to end.

A second Ctrl-C or SIGTERM stops it immediately.
"""

import os
import signal
import socket
import stat
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_TWICE = (signal.SIGINT, signal.SIGTERM)
# A closed terminal, a batch system's notice, a limit or timer that has run out, a failing power supply: these end a
# process that does not handle them. No system has all
_OTHERS = ('HUP', 'USR1', 'USR2', 'XCPU', 'ALRM', 'VTALRM', 'PROF', 'IO', 'PWR', 'BREAK')
SIGNALS = (*_TWICE, *(getattr(signal, f'SIG{name}') for name in _OTHERS if hasattr(signal, f'SIG{name}')))


class Stopped(Exception):
    """The run was asked to stop, and saved its state if it could. `signum`: the signal received."""

    def __init__(self, message: str, signum: int):
        super().__init__(message)
        self.signum = signum


class Request:
    """A request to stop: `signum` is the signal received, 0 if none."""

    signum = 0


@contextmanager
def ignore() -> Iterator[Request]:
    """Yields a request that never comes: Ctrl-C raises KeyboardInterrupt, as everywhere in Python."""
    yield Request()


@contextmanager
def listen() -> Iterator[Request]:
    """Turns signals that would end the process into a stop request for the duration of the block.

    These are SIGINT, SIGTERM, and those of `SIGNALS` that the process neither ignores, as SIGHUP under nohup, nor
    handles itself.

    The main thread spends its time in compiled code, where Python runs no signal handlers; so the signals wake a thread
    through a socket, and the second one takes effect even in the middle of a round. Outside the main thread, where
    signals cannot be handled, this does nothing.
    """
    request = Request()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    taken = [signum for signum in SIGNALS if signum in _TWICE or signal.getsignal(signum) is signal.SIG_DFL]

    def watch() -> None:
        while byte := receiver.recv(1):
            if byte[0] not in taken:
                continue
            first, at_once = not request.signum, request.signum in _TWICE
            if at_once and byte[0] in _TWICE:  # other signals may repeat, as SIGXCPU does every second
                os._exit(128 + byte[0])
            _leave_closed_terminal()  # before the main thread sees the request, and says so
            if not at_once:
                request.signum = byte[0]
            if first:
                print('\nstopping after this round; interrupt again to stop immediately', file=sys.stderr, flush=True)

    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    handlers = {signum: signal.signal(signum, lambda *_: None) for signum in taken}
    previous = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    try:
        yield request
    finally:
        signal.set_wakeup_fd(previous)
        for signum, handler in handlers.items():
            signal.signal(signum, handler)
        sender.close()
        watcher.join()
        receiver.close()


def _leave_closed_terminal() -> None:
    """Sends output for a closed terminal to nowhere, as writing to it would end the run."""
    for descriptor in (1, 2):
        if stat.S_ISCHR(os.fstat(descriptor).st_mode) and not os.isatty(descriptor):
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
