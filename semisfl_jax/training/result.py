"""What a run produced: in memory after training, from its folder if an earlier call finished it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from semisfl_jax.core import hosts
from semisfl_jax.core.errors import UserError
from semisfl_jax.training import metrics, resume, workdir

Records = list[dict[str, Any]]  # the lines of metrics.jsonl


class Result:
    """What a run produced. With several seeds, arrays have a leading axis of trials, and the state is a list.

    Attributes:
      summary: the content of summary.json.
    """

    def __init__(self, summary: dict[str, Any], records: Callable[[], list[Records]], state: Callable[[], Any]):
        self.summary = summary
        self._records, self._state = records, state

    @functools.cached_property
    def metrics(self) -> dict[str, np.ndarray]:
        """{name: [T]} or {name: [R, T]} of the T rounds: the entries of metrics.jsonl, NaN where there is none."""
        arrays = [metrics.as_arrays(records) for records in self._records()]
        return metrics.stack(arrays) if 'trials' in self.summary else arrays[0]

    @functools.cached_property
    def state(self) -> Any:
        """The final state of the method: `core.State` in those of the package. That of a run which an earlier call
        finished is read from its checkpoint, which takes the time to build the experiment."""
        return self._state()


def read(folder: Path, config: ConfigDict, run_summary: dict[str, Any]) -> Result:
    """The result of a run that an earlier call finished."""
    homes = workdir.of_trials(folder, config)

    def records() -> list[Records]:
        return hosts.from_first(lambda: [metrics.read(home / 'metrics.jsonl', run_summary['rounds']) for home in homes])

    def state() -> Any:
        trials = resume.build(config, folder)
        restored = resume.restore(resume.homes(trials, folder, config), run_summary['rounds'])
        if restored is None:
            raise UserError(f'{folder} holds no checkpoint; restore its checkpoints, or train in another folder')
        states = resume.on_devices(trials[0], restored)
        return states if config.seeds else states[0]

    return Result(run_summary, records, state)
