"""Jobs of submitit: what they run, what is said of them, what Slurm is asked for."""

import importlib
import stat

import pytest

from semisfl_jax.base.errors import UserError
from semisfl_jax.lab import launcher
from semisfl_jax.lab.studies import engine
from tests.helpers import studies_toy, studies_words, sweeps_toy
from tests.helpers.studies_toy import started


def debug(monkeypatch, job):
    """A launcher of two jobs, one after the other in this process, each of which is `job`; the words that they got."""
    got = []
    module = importlib.import_module('semisfl_jax.__main__')
    monkeypatch.setattr(module, 'main', lambda words: (got.append(words), job())[1])
    return launcher.read({'launcher': 'debug', 'jobs': 2}, ['--config=x']), got


@pytest.mark.parametrize('toy', [studies_toy, pytest.param(sweeps_toy, marks=pytest.mark.slow)], ids=['study', 'sweep'])
def test_jobs_make_the_runs_of_a_study_and_of_a_sweep(tmp_path, monkeypatch, toy):
    definition = toy.study() if toy is studies_toy else toy.sweep()
    program, said = toy.launcher(tmp_path), []
    asked, got = debug(monkeypatch, lambda: engine.run(definition, {}, str(tmp_path / 'root'), program) and 0)
    folder = engine.run(definition, {}, str(tmp_path / 'root'), program, said.append, asked)
    assert got == [['semisfl', '--config=x', '--jobs=2']] * 2
    assert said[1].startswith('2 jobs: ')
    assert (folder / 'report.md').exists()
    if toy is studies_toy:
        names = [job.name for job in studies_words.jobs(definition)]
        assert sorted(started(tmp_path / 'root')) == sorted(names)
        assert [line.split()[0] for line in said if line.startswith('[')] == [f'[{n}/4]' for n in range(1, 5)]


@pytest.mark.slow
def test_a_run_that_fails_in_a_job_is_in_the_report(tmp_path, monkeypatch):
    study, root, program = studies_toy.study(), str(tmp_path / 'root'), studies_toy.launcher(tmp_path)
    monkeypatch.setenv('TOY_FAILS', 'fedswitch')

    def job():
        with pytest.raises(UserError, match='2 of 4 runs failed'):
            engine.run(study, {}, root, program)
        return 2

    asked, _ = debug(monkeypatch, job)
    with pytest.raises(UserError, match=r'2 of 4 runs failed; .*the toy does not like fedswitch'):
        engine.run(study, {}, root, program, launcher=asked)
    assert 'failed: the toy does not like fedswitch' in (tmp_path / 'root' / 'toy-smoke' / 'report.md').read_text()


def test_jobs_that_end_too_early_are_told(tmp_path, monkeypatch):
    asked, _ = debug(monkeypatch, lambda: 130)
    with pytest.raises(UserError, match=r'4 runs of 4 are missing; see .*logs/jobs, and repeat'):
        engine.run(studies_toy.study(), {}, str(tmp_path / 'root'), studies_toy.launcher(tmp_path), launcher=asked)


def write_tool(folder, name, text):
    path = folder / name
    path.write_text(f'#!/bin/sh\n{text}\n')
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def test_slurm_is_asked_for_what_the_command_names(tmp_path, monkeypatch):
    asked = launcher.read(
        {'launcher': 'slurm', 'jobs': 3, 'slurm': ['partition=gpu,time=60,gres=a:1,b:2', 'mem=8GB']}, []
    )
    with pytest.raises(UserError, match='srun'):
        asked.start(tmp_path / 'jobs', 3)
    write_tool(tmp_path, 'srun', '')
    write_tool(tmp_path, 'sbatch', f'cat $1 > {tmp_path}/asked; echo Submitted batch job 7')
    monkeypatch.setenv('PATH', str(tmp_path), prepend=':')
    jobs = asked.start(tmp_path / 'jobs', 2)
    assert jobs.title == '2 jobs: 7_0, 7_1'
    lines = (tmp_path / 'asked').read_text().splitlines()
    for option in 'partition=gpu', 'time=60', 'gres=a:1,b:2', 'mem=8GB', 'job-name=semisfl', 'array=0-1%2':
        assert f'#SBATCH --{option}' in lines
    assert 'scancel 7 stops them' in jobs.stop()
    write_tool(tmp_path, 'sbatch', 'echo invalid partition specified: gpu >&2; exit 1')
    with pytest.raises(UserError, match='invalid partition specified: gpu'):
        asked.start(tmp_path / 'jobs', 2)


def test_a_job_whose_time_runs_out_is_queued_again():
    command = launcher._Command(['--config=x'], {})
    again = command.checkpoint()
    assert again.function is command
    assert (again.args, again.kwargs) == ((), {})
