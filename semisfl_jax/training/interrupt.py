"""The first Ctrl-C stops the run after the current round, the second one immediately."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(Exception):
    """The run was asked to stop and has saved its state. `signum`: the signal received."""

    def __init__(self, message: str, signum: int):
        super().__init__(message)
        self.signum = signum


class Request:
    """A request to stop: `signum` is the signal received, 0 if none."""

    signum = 0


@contextmanager
def ignore() -> Iterator[Request]:
    """A request that never comes: Ctrl-C raises KeyboardInterrupt, as everywhere in Python."""
    yield Request()


@contextmanager
def listen() -> Iterator[Request]:
    """Turns SIGINT and SIGTERM into a stop request for the duration of the block.

    The main thread spends its time in compiled code, where Python runs no signal handlers; so the signals wake a
    thread through a socket, and the second one takes effect even in the middle of a round. Outside the main thread,
    where signals cannot be handled, this does nothing.
    """
    request = Request()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def watch() -> None:
        while byte := receiver.recv(1):
            if byte[0] not in SIGNALS:
                continue
            if request.signum:
                os._exit(128 + byte[0])
            request.signum = byte[0]
            print('\nstopping after this round; interrupt again to stop immediately', file=sys.stderr, flush=True)

    receiver, sender = socket.socketpair()
    sender.setblocking(False)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    handlers = {signum: signal.signal(signum, lambda *_: None) for signum in SIGNALS}
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
