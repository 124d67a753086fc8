"""Starts jobs by submitit, on this machine or in Slurm, that divide the runs of a grid, a study or a sweep.

Each job is the same command without the launcher. Who makes which run is claimed in the folders of the runs.
"""

import ast
import contextlib
import dataclasses
import importlib.util
import os
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import semisfl_jax as sfl
from semisfl_jax.base.errors import UserError, count, first_line, install, use_one_of

LOCAL, SLURM = 'local', 'slurm'
LAUNCHERS = (LOCAL, SLURM, 'debug')
_AS_LONG_AS_IT_TAKES = 60 * 24 * 365  # minutes


@dataclasses.dataclass(frozen=True)
class Launcher:
    """How jobs are started."""

    name: str  # of LAUNCHERS
    jobs: int  # at most
    slurm: Mapping[str, Any]  # parameters of a job
    words: Sequence[str]  # of the command

    def start(self, folder: Path, most: int) -> 'Started':
        """Starts the jobs.

        Args:
          folder: folder of their output.
          most: number of runs that are missing.

        Raises:
          UserError: there is no Slurm, or it refuses.
        """
        import submitit

        paths = [str(Path(sfl.__file__).parents[1]), os.environ.get('PYTHONPATH', '')]  # this package first
        os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, paths))
        command = _Command(list(self.words), self.name == LOCAL, os.environ.get('CUDA_VISIBLE_DEVICES'))
        number = min(self.jobs, most)
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: Ctrl-C reaches this process alone
        try:
            executor = submitit.AutoExecutor(folder, cluster=self.name)
            executor.update_parameters(name='semisfl', timeout_min=_AS_LONG_AS_IT_TAKES)
            executor.update_parameters(**self._parameters())
            with executor.batch():
                jobs = [executor.submit(command) for _ in range(number)]
        except (RuntimeError, NameError, submitit.core.utils.FailedJobError) as error:
            raise UserError(f'--launcher={self.name}: {first_line(error)}') from error
        finally:
            signal.signal(signal.SIGINT, handler)
        return Started(self.name, folder, jobs)

    def _parameters(self) -> dict[str, Any]:
        """Returns the parameters as submitit takes them; those that it does not know are options of sbatch."""
        from submitit.slurm.slurm import SlurmExecutor

        known = SlurmExecutor._valid_parameters()
        others = {key: value for key, value in self.slurm.items() if key not in known}
        named = {f'slurm_{key}': value for key, value in self.slurm.items() if key in known}
        return named | ({'slurm_additional_parameters': others} if others else {})


def read(flags: Mapping[str, Any], words: Sequence[str]) -> Launcher | None:
    """Returns the launcher that the flags of a command ask for, None if they do not.

    Args:
      flags: values of --launcher, --jobs and --slurm by name.
      words: the words of the command without them.

    Raises:
      UserError: a flag has a wrong value or needs another, or submitit is not installed.
    """
    if not flags:
        return None
    name, jobs, parameters = flags.get('launcher', ''), flags.get('jobs', 0), dict[str, Any]()
    if name not in LAUNCHERS:
        raise UserError(f"--launcher='{name}' is unknown; {use_one_of(name, LAUNCHERS)}")
    if jobs < 1:
        raise UserError(f'--launcher={name} needs --jobs=N, 1 or more: how many jobs divide the runs')
    for part in (part for text in flags.get('slurm', ()) for part in re.split(r',(?=[\w-]+=)', text)):
        key, equals, value = part.partition('=')
        if not equals:
            raise UserError(f'--slurm {part} has no value; write --slurm NAME=VALUE,NAME=VALUE, options of sbatch')
        with contextlib.suppress(SyntaxError, ValueError):  # else it is a word
            value = ast.literal_eval(value)
        parameters[key.replace('-', '_')] = value
    if (name == SLURM) != (type(parameters.get('time')) is int):
        raise UserError(
            '--launcher=slurm and --slurm time=MINUTES go together: what a job may take before it is queued again'
        )
    if importlib.util.find_spec('submitit') is None:
        raise UserError(f'--launcher needs submitit: {install("launcher")}')
    return Launcher(name, jobs, parameters, words)


class Started(NamedTuple):
    """Jobs that were started."""

    launcher: str
    folder: Path  # of their output
    jobs: list[Any]  # submitit.Job

    @property
    def title(self) -> str:
        """Their number and names: '2 jobs: 12_0, 12_1'."""
        return f'{count(len(self.jobs), "job")}: {", ".join(job.job_id for job in self.jobs)}'

    def ended(self) -> bool:
        """Returns whether all have ended."""
        return all(job.done() for job in self.jobs)

    def stop(self, signum: int) -> None:
        """Asks the jobs of this machine to stop after their round (a second time at once); leaves those of Slurm alone.

        Raises:
          Stopped: the jobs go on.
        """
        if self.launcher == SLURM:
            names = ' '.join(dict.fromkeys(job.job_id.partition('_')[0] for job in self.jobs))
            text = f'the jobs go on; scancel {names} stops them, and the same command without --launcher waits for them'
            raise sfl.interrupt.Stopped(text, signum)
        for job in self.jobs if self.launcher == LOCAL else ():
            if not job.done():
                job._process.send_signal(signal.SIGTERM)

    def fault(self) -> str:
        """Says how the first job has ended that has not succeeded."""
        for job in self.jobs:
            lines = [line for line in (job.stderr() or '').splitlines() if line.startswith('error: ')]
            if lines:
                return f'job {job.job_id} ended with: {lines[-1].removeprefix("error: ")}'
            if error := job.exception():
                return f'job {job.job_id} did not end: {first_line(error)}'
        return 'the jobs were stopped'


class _Command:
    """The command, as a job runs it; Slurm queues it again if its time runs out."""

    def __init__(self, words: list[str], local: bool, devices: str | None):
        self.words, self.local, self.devices = words, local, devices

    def __call__(self) -> int:
        if self.local:
            os.setsid()
            os.environ.pop('CUDA_VISIBLE_DEVICES', None)  # which submitit sets to none
            if self.devices is not None:
                os.environ['CUDA_VISIBLE_DEVICES'] = self.devices
        return importlib.import_module('semisfl_jax.__main__').main(['semisfl', *self.words])

    def checkpoint(self) -> Any:
        """Returns what is to be queued again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)
