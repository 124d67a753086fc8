"""Sweeps as they are defined: ranges in the records of methods, configurations, and every mistake in one line."""

import dataclasses
import importlib

import pytest

import semisfl_jax as sfl
from semisfl_jax.algorithms.ranges import linear, log
from semisfl_jax.base.errors import UserError
from semisfl_jax.config import command_line
from semisfl_jax.lab.studies import plan, sweeps
from tests.helpers import runs, sweeps_toy


def parse(name, scale, *words):
    argv = ['launch.py', f'--config={runs.ROOT}/configs/sweeps/{name}.py:{scale}', *words]
    return command_line.parse(argv, studies=True)


@pytest.mark.parametrize(('name', 'scale'), [('digits', 'smoke'), ('mnist', 'cpu')])
def test_every_sweep_resolves_and_tunes_on_seeds_that_no_study_has(name, scale):
    sweep = parse(name, scale).config.sweep
    plan.make(sweep, {})
    assert (sweep.name, sweep.scale, bool(sweep.warning)) == (name, scale, scale == 'smoke')
    assert len(sweep.entries) == 9
    studies = importlib.import_module('configs.studies.scales').SEEDS
    assert not set(sweep.seeds) & {seed for seeds in studies.values() for seed in seeds}
    for entry in sweep.entries:
        job = plan.trial_job(sweep, entry, sweeps.untuned(sweep, entry))
        assert job.seeds == (100, 101)
        assert ' --config.data.eval_split=validation ' in job.command()


def test_the_command_changes_trials_and_methods_and_their_configuration():
    command = parse('digits', 'smoke', '--config.sweep_trials=7', '--config.sweep_methods=semisfl,FedMatch')
    sweep = sweeps.with_changes(command.config.sweep, command.given)
    assert ([entry.title for entry in sweep.entries], sweep.trials) == (['FedMatch', 'SemiSFL'], 7)
    sweep = sweeps.with_changes(command.config.sweep, {'lr': 0.1, 'seeds': (103,)})
    entry = sweep.entries[-1]
    assert sweeps.untuned(sweep, entry)['lr'] == 0.1
    assert sweeps.settings(sweep, {'lr': 0.05})['lr_min'] == 0.0025  # half of its 0.005, as 0.05 is of 0.1
    assert plan.trial_job(sweep, entry, {'lr': 0.05}).changes['seed'] == 103


def test_a_range_of_whole_numbers_is_of_floats_where_the_key_is():
    sweep = toy(sweeps.entry('semisfl', ranges={'momentum': linear(0, 1), 'seed': linear(0, 1)}))
    (entry,) = sweeps.with_changes(sweep, {}).entries
    assert [type(range_.high) for range_ in entry.ranges.values()] == [float, int]


def toy(*entries, trials=1, seeds=(100,), **changes):
    entries = entries or (sweeps.entry('semisfl'),)
    return dataclasses.replace(sweeps_toy.sweep(entries, trials, **changes), seeds=seeds)


FOREIGN = {'semifl.mixup_alpha': log(0.1, 1.0)}


@pytest.mark.parametrize(
    ('make', 'named'),
    [
        (lambda: toy(**{'data.eval_split': 'test', 'data.num_validation': 0}), "eval_split='test'"),
        (lambda: toy(trials=0), 'sweep_trials=0'),
        (lambda: sweeps.with_changes(toy(), {'sweep_batch': 0}), 'sweep_batch=0'),
        (lambda: toy(seeds=()), r'config\.seeds'),
        (lambda: toy(sweeps.entry('semisfl', ranges={})), 'SemiSFL: semisfl'),
        (lambda: toy('semisfl'), r"'semisfl' is no method of a sweep; write sweeps\.entry"),
        (lambda: toy(sweeps.entry('semisfl', ranges={'lr': (0.1, 1.0)})), r'config\.lr: a tuple is no range'),
        (lambda: toy(sweeps.entry('semisfl', ranges=FOREIGN)), r'SemiSFL: .*semifl\.mixup_alpha'),
        (lambda: toy(sweeps.entry('semisfl'), sweeps.entry('semisfl')), "'SemiSFL'"),
        (lambda: toy(lr=1.0), r'config\.lr=1\.0'),
        (lambda: toy(sweeps.entry('semisfl', ranges={'momentum': linear(0.0, 1.5)})), r'config\.momentum=1\.5'),
        (lambda: sweeps.with_changes(toy(), {'seed': 1}), r'config\.seed .*config\.seeds'),
        (lambda: sweeps.with_changes(toy(), {'algorithm': 'fedavg'}), r'config\.algorithm .*config\.sweep_methods'),
        (lambda: sweeps.with_changes(toy(), {'sweep_methods': ('fedavg',)}), "'fedavg'"),
        (lambda: parse('digits', 'huge').config.sweep, "'huge'"),
    ],
)
def test_a_mistake_in_a_sweep_is_named(make, named):
    with pytest.raises(UserError, match=named):
        plan.make(make(), {})


def test_a_trial_of_ones_own_file_is_started_from_it(tmp_path):
    file = tmp_path / 'mine.py'
    file.write_text('from configs import digits\n\ndef get_config():\n    return digits.get_config()\n')
    config = sfl.get_config(file, sweeps_toy.CHANGES)
    sweep = sweeps.Sweep('mine', 'mine', str(file), config, [sweeps.entry('semisfl')], 1)
    plan.make(sweep, {})
    job = plan.trial_job(sweep, sweep.entries[0], sweeps.untuned(sweep, sweep.entries[0]))
    assert job.name.startswith('mine-')
    assert 'python -m semisfl_jax --config=mine.py ' in job.command()
