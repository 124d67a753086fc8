"""A grid by command: what it runs, what it leaves alone, its table; killed, divided, and with a cell that fails."""

import functools
import json
import os
import subprocess
import sys

import pytest

import semisfl_jax as sfl
from semisfl_jax import __main__ as command
from semisfl_jax import config as config_lib
from semisfl_jax.base.errors import Diverged, UserError
from semisfl_jax.config import command_line
from semisfl_jax.lab import grid
from tests.helpers import runs, studies_toy
from tests.helpers.one_line import assert_one_line
from tests.helpers.studies_toy import started

AXES = '--grid federation.alpha=1.0,0.5 --grid algorithm=semisfl,fedswitch'
# of seed 0 after 4 rounds, from `studies_toy.ACCURACY`
TABLE = """
federation.alpha  algorithm   final  mean of last    best  rounds
             1.0    semisfl  90.00%        90.00%  90.00%       4
             1.0  fedswitch  88.00%        88.00%  88.00%       4
             0.5    semisfl  80.00%        80.00%  80.00%       4
             0.5  fedswitch  78.00%        78.00%  78.00%       4
"""


def make(root, program, axes=AXES, share=1):
    """Runs the grid with made-up runs; returns what it says."""
    asked = command_line.parse(['semisfl', '--config=digits', '--config.rounds=4', *axes.split()], studies=True)
    said = []
    grid.run(command._cells(asked), asked.name, asked.words, str(root / 'grid'), program, said.append, share=share)
    return said


def test_cells_are_made_once_and_a_larger_grid_has_them(tmp_path):
    program = studies_toy.launcher(tmp_path)
    said = make(tmp_path, program, '--grid federation.alpha=1.0,0.5')
    assert said[0] == f'grid of federation.alpha in {tmp_path}/grid: 2 cells, 0 done'
    assert said[1] == '[1/2] federation.alpha=1.0'
    assert said[2:4] == ['[2/2] federation.alpha=0.5', '    in one program']
    assert said[4].startswith('    [1] teacher accuracy: final 90.00%, best 90.00%')
    first = started(tmp_path)
    alone = [sfl.get_config('digits', rounds=4, federation__alpha=alpha) for alpha in (1.0, 0.5)]
    assert first == [sfl.run_name(sfl.resolve(config), 'digits') for config in alone]
    said = make(tmp_path, program)
    assert said[-1] == TABLE
    made = started(tmp_path)
    assert made[:2] == first
    assert len(set(made)) == len(made) == 4
    assert make(tmp_path, program) == [said[0].replace('2 done', '4 done'), TABLE]


def test_a_cell_that_fails_is_named_and_tried_again(tmp_path, monkeypatch):
    program = studies_toy.launcher(tmp_path)
    monkeypatch.setenv('TOY_FAILS', 'fedswitch')
    with pytest.raises(
        UserError, match=r'2 of 4 cells failed: .*alpha=1.0, algorithm=fedswitch; .*tries again'
    ) as error:
        make(tmp_path, program)
    assert not isinstance(error.value, Diverged)
    assert len(started(tmp_path)) == 2
    monkeypatch.delenv('TOY_FAILS')
    assert make(tmp_path, program)[-1] == TABLE


def test_cells_that_diverge_have_the_status_of_one_run(tmp_path, monkeypatch):
    program = studies_toy.write_launcher(tmp_path, accuracy)
    with pytest.raises(Diverged, match=r'1 of 2 cells failed: lr=0\.2; '):
        make(tmp_path, program, '--grid lr=0.1,0.2')


def accuracy(words, seed, number):
    if words['config.lr'] == '0.3' and '--' in sys.argv:
        os._exit(9)  # as the kernel does if memory runs out
    return None if words['config.lr'] == '0.2' else 0.5


def test_what_a_broken_program_leaves_is_made_alone(tmp_path):
    program = studies_toy.write_launcher(tmp_path, accuracy)
    said = make(tmp_path, program, '--grid lr=0.1,0.3,0.4')
    assert [line.split()[0] for line in said if line.startswith('[')] == ['[1/3]', '[2/3]', '[3/3]', '[2/3]', '[3/3]']
    first, broken, again, third = started(tmp_path)
    assert broken == again
    assert len({first, again, third}) == 3


def test_of_processes_that_divide_a_program_one_takes_its_share(tmp_path):
    said = make(tmp_path, studies_toy.write_launcher(tmp_path, accuracy), '--grid lr=0.1,0.4,0.5', share=2)
    assert [line for line in said if line.startswith('    in')] == ['    in one program']  # of two, and one alone
    assert len(started(tmp_path)) == 3


START = """
import sys
from pathlib import Path
from tests.lab import test_grid
print(*test_grid.make(Path(sys.argv[1]), Path(sys.argv[2])), sep='\\n')
"""


@pytest.mark.slow
def test_killed_it_is_finished_by_the_same_command_and_two_divide_it(tmp_path):
    program = studies_toy.launcher(tmp_path)
    killed = studies_toy.start(tmp_path, '-c', START, program, TOY_SLEEP='0.2')
    studies_toy.wait_until(killed, lambda: len(started(tmp_path)) == 2)
    studies_toy.kill(killed, with_run=True)
    both = [studies_toy.start(tmp_path, '-c', START, program, TOY_SLEEP='0.2') for _ in range(2)]
    for process in both:
        ended = runs.end_process(process)
        assert ended.returncode == 0
        assert ended.stdout.decode().endswith(TABLE + '\n')
    made = started(tmp_path)
    assert {name: made.count(name) for name in made} == {name: 1 + (name == made[1]) for name in made}
    assert len(set(made)) == 4


@pytest.mark.parametrize(
    ('words', 'named'),
    [
        ('--grid lr', ['--grid lr=VALUE']),
        ('--grid workdir=a,b', ['config.workdir is not a key']),
        ('--grid treshold=0.9', ['did you mean config.threshold']),
        ('--grid lr=0.1,x', ['--grid lr=x', 'a number']),
        ('--grid lr=0.1 --grid lr=0.2', ['config.lr has values twice']),
        ('--grid lr=0.1 --config.lr=0.2', ['config.lr has values twice']),
        ('--grid seed=0-4 --config.seeds=1,2', ['config.seed has values twice']),
        ('--grid lr=0.1,-1,0.2', ['lr=-1.0: config.lr=-1.0 must be above 0']),
        ('--grid k_u=1-100 --grid k_s=1-100', ['more than 1,000 cells']),
        ('--launcher=local --jobs=2', ['add --grid']),
        ('--grid lr=0.1 --launcher=slurn --jobs=2', ["'slurm'"]),
        ('--grid lr=0.1 --launcher=local', ['--jobs=N']),
        ('--grid lr=0.1 --launcher=local --jobs=1 --slurm time=9', ['--launcher=slurm']),
        ('--grid lr=0.1 --launcher=slurm --jobs=1 --slurm time=1:00', ['time=MINUTES']),
    ],
)
def test_a_mistake_is_one_line_and_writes_nothing(tmp_path, monkeypatch, capsys, words, named):
    monkeypatch.chdir(tmp_path)
    assert runs.command('train', '--config=digits', *words.split()) == 2
    assert_one_line(capsys.readouterr().err, named)
    assert not os.listdir(tmp_path)


def test_a_study_has_no_grid(capsys):
    assert runs.command('--config=studies/table4:smoke', '--grid', 'lr=0.1,0.2') == 2
    assert_one_line(capsys.readouterr().err, ['table4 is a study'])


@pytest.mark.slow
def test_runs_of_a_killed_grid_that_two_jobs_finish_are_the_runs_alone(tmp_path):
    home, settings = tmp_path / 'grid', {'algorithm': 'supervised_only', 'rounds': 6}
    words = [*runs.words(home, **settings), '--grid', 'lr=0.1,0.02', '--grid', 'momentum=0.5,0.9', '--jobs=4']
    start = functools.partial(subprocess.Popen, cwd=runs.ROOT, stdout=-1, stderr=-1, text=True, start_new_session=True)
    killed = start([sys.executable, 'launch.py', *words])
    studies_toy.wait_until(killed, lambda: len(list(home.glob('digits-*/metrics.jsonl'))) == 2)
    studies_toy.kill(killed, with_run=True)
    (first,) = home.glob('digits-*/summary.json')
    written = first.stat().st_mtime_ns
    ended = runs.end_process(start([sys.executable, 'launch.py', *words, '--launcher=local', '--jobs=2']))
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert first.stat().st_mtime_ns == written
    assert '2 jobs: ' in ended.stdout
    assert len(list(home.glob('*/summary.json'))) == 4
    for lr, momentum in (0.1, 0.9), (0.02, 0.5):  # the second, in which it was killed, and the third
        alone = tmp_path / f'{lr} {momentum}'
        assert runs.run(alone, lr=lr, momentum=momentum, **settings) == 0
        config = json.loads((alone / 'config.json').read_text())
        folder = home / config_lib.run_name(config, 'digits')
        assert runs.lines(folder) == runs.lines(alone)
        for name in 'config.json', 'began.json', 'partition.npz':
            assert (folder / name).read_bytes() == (alone / name).read_bytes()
        assert {path.name for path in folder.iterdir()} == {path.name for path in alone.iterdir()} | {'.claim'}
