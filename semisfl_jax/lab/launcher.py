"""Starts jobs by submitit, on this machine or in Slurm, that divide the runs of a grid, a study or a sweep.

Each job is the same command with --jobs alone; the folders of runs say who makes which.
"""

import importlib.util
import os
import re
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import semisfl_jax as sfl
from semisfl_jax.base.errors import UserError, count, install, use_one_of

LOCAL, SLURM = 'local', 'slurm'
LAUNCHERS = (LOCAL, SLURM, 'debug')  # debug: submitit's, in this process
_A_YEAR = 60 * 24 * 365  # minutes


class Launcher(NamedTuple):
    """How jobs are started."""

    name: str  # of LAUNCHERS
    jobs: int  # at most
    options: Mapping[str, Any]  # of sbatch
    minutes: int  # that a job may take
    words: Sequence[str]  # of the command

    def start(self, folder: Path, most: int) -> 'Started':
        """Starts the jobs.

        Args:
          folder: folder of their output.
          most: the most jobs that find something to do.

        Raises:
          UserError: there is no Slurm, or it refuses.
        """
        import submitit

        paths = [str(Path(sfl.__file__).parents[1]), os.environ.get('PYTHONPATH', '')]  # this package first
        os.environ['PYTHONPATH'] = os.pathsep.join(filter(None, paths))
        command = _Command([*self.words, f'--jobs={self.jobs}'], dict(os.environ) if self.name == LOCAL else {})
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # inherited: Ctrl-C reaches this process alone
        try:
            executor = submitit.AutoExecutor(folder, cluster=self.name)
            executor.update_parameters(name='semisfl', timeout_min=self.minutes)
            executor.update_parameters(slurm_additional_parameters=self.options)
            with executor.batch():
                jobs = [executor.submit(command) for _ in range(min(self.jobs, most))]
        except (RuntimeError, submitit.core.utils.FailedJobError) as error:
            raise UserError(f'--launcher={self.name}: {error}') from error
        finally:
            signal.signal(signal.SIGINT, handler)
        return Started(self.name, jobs)


class Started(NamedTuple):
    """Jobs that were started."""

    launcher: str
    jobs: list[Any]  # submitit.Job

    @property
    def title(self) -> str:
        """Their number and names: '2 jobs: 12_0, 12_1'."""
        return f'{count(len(self.jobs), "job")}: {", ".join(job.job_id for job in self.jobs)}'

    def stop(self) -> str:
        """Asks the jobs of this machine to stop after their round, and says what all jobs do."""
        if self.launcher == SLURM:
            names = ' '.join(dict.fromkeys(job.job_id.partition('_')[0] for job in self.jobs))
            return f'the jobs go on; scancel {names} stops them, the same command without --launcher waits for them'
        for job in self.jobs:
            job._process.send_signal(signal.SIGTERM)
        return 'the jobs stop after their round; the same command resumes from there'


class _Command:
    """The command as a job runs it. If its time runs out, Slurm queues it again."""

    def __init__(self, words: list[str], environment: dict[str, str]):
        self.words, self.environment = words, environment

    def __call__(self) -> int:
        if self.environment:  # of this machine
            os.setsid()
            del os.environ['CUDA_VISIBLE_DEVICES']  # submitit allows none
            os.environ.update(self.environment)
        return importlib.import_module('semisfl_jax.__main__').main(['semisfl', *self.words])

    def checkpoint(self) -> Any:
        """Returns what is to be queued again."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


def read(flags: Mapping[str, Any], words: Sequence[str]) -> Launcher | None:
    """Returns the launcher that a command asks for, None if it does not: --jobs alone says how many divide the runs.

    Args:
      flags: values of --launcher, --jobs and --slurm by name.
      words: the words of the command without them.

    Raises:
      UserError: a flag has a wrong value or needs another, or submitit is not installed.
    """
    if not flags:
        return None
    name, jobs = flags.get('launcher', ''), flags.get('jobs', 0)
    if flags.keys() == {'jobs'} and jobs > 0:
        return None
    if name not in LAUNCHERS:
        raise UserError(f"--launcher='{name}' is unknown; {use_one_of(name, LAUNCHERS)}")
    if jobs < 1:
        raise UserError(f'--launcher={name} needs --jobs=N, the number of jobs that divide the runs, 1 or more')
    pairs = (part.partition('=') for text in flags.get('slurm', ()) for part in re.split(r',(?=[\w-]+=)', text))
    options: dict[str, Any] = {key: value if equals else True for key, equals, value in pairs}
    minutes = options.pop('time', '') if name == SLURM else str(_A_YEAR)
    if not minutes.isdecimal():
        raise UserError('--launcher=slurm needs --slurm time=MINUTES, after which a job is queued again and resumes')
    if options and name != SLURM:
        raise UserError('--slurm has options of sbatch; leave it out, or use --launcher=slurm')
    if importlib.util.find_spec('submitit') is None:
        raise UserError(f'--launcher needs submitit: {install("launcher")}')
    return Launcher(name, jobs, options, int(minutes), words)
