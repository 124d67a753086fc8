"""The file of a run's TensorBoard events, one for each line of metrics.jsonl.

The process writes it itself. tensorboardX's SummaryWriter leaves that to a thread, which a full disk ends: the run
would learn of it from a traceback at its end at the earliest, and wait forever once that thread's queue is full.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from semisfl_jax import tasks

FLUSH_SECONDS = 10  # after so many, the next event brings what was written to the disk


class Events:
    """An open file of events."""

    def __init__(self, folder: Path, first_round: int) -> None:
        """Opens a new file. TensorBoard hides events that other files of the folder have from `first_round` on.

        Raises:
          OSError: the file cannot be written; so do the other methods.
        """
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        with self._naming():
            self._writer = EventsWriter(str(folder / 'events'))
        self._flushed = time.monotonic()
        self._write(Event(step=first_round, session_log=SessionLog(status=SessionLog.START)))

    def add(self, step: int, scalars: Summary) -> None:
        """Appends the scalars of a step as one event."""
        self._write(Event(step=step, summary=scalars))
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            with self._naming():
                self._writer.flush()
            self._flushed = time.monotonic()

    def close(self) -> None:
        """Writes what is left, and closes the file."""
        with self._naming():
            self._writer.close()

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        with self._naming():
            self._writer.write_event(event)

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Says in an error of the disk what could not be written."""
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._folder)) from error


def log_events(events: Events, record: dict[str, Any]) -> None:
    """Logs one line of metrics.jsonl as scalars, grouped under FAKE for synthetic images, scores under VALIDATION
    if they are of validation images."""
    group, scalars = 'FAKE/' if record.get('fake') else '', Summary()
    for key, value in record.items():
        if key not in ('round', 'fake', 'validation') and value is not None:
            part = 'VALIDATION/' if record.get('validation') and tasks.split_key(key) else ''
            scalars.value.add(tag=group + part + key, simple_value=value)
    events.add(record['round'], scalars)
