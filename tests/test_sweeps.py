"""Sweeps as they are defined: ranges in the records of methods, configurations, and every mistake in one line."""

import dataclasses
import importlib

import pytest

from semisfl_jax import algorithms
from semisfl_jax.algorithms.ranges import choice, linear, log
from semisfl_jax.config import command_line
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.hparams import shared_defaults
from semisfl_jax.studies import sweeps
from semisfl_jax.studies.sweeps import search
from tests import runs, sweeps_toy


def test_every_method_has_ranges_around_its_defaults():
    shared = shared_defaults()
    for method in algorithms.METHODS.values():
        options = {field.name: field.default for field in dataclasses.fields(method.options)} if method.options else {}
        assert 'lr' in method.ranges
        for key, range_ in method.ranges.items():
            default = shared[key] if key in shared else options[key.partition('.')[2]]
            assert default in range_, (method.name, key)


@pytest.mark.parametrize(
    ('key', 'range_', 'why'),
    [
        ('clustering_weight', log(0.1, 1.0), 'does not read it'),
        ('fedmatch.lambda_a', log(0.1, 1.0), 'neither an option of the method nor a shared'),
        ('lr_min', log(0.1, 1.0), 'follows lr'),
        ('lr', (0.1, 1.0), 'a tuple is no range'),
        ('k_u', linear(1, 5), 'how much work'),
        ('pseudo_labels', choice('method', 'true'), 'oracle'),
        ('semifl.global_momentum', linear(0.0, 1.0), r'\[0, 1\)'),
        ('semifl.order', choice('clients_first', 'clients'), "'clients'"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused_at_registration(key, range_, why):
    method = dataclasses.replace(algorithms.METHODS['semifl'], name='mine', group='semifl', ranges={key: range_})
    with pytest.raises(ValueError, match=why):
        algorithms.register(method)
    assert 'mine' not in algorithms.METHODS
    with pytest.raises(UserError, match='no logarithm'):
        log(0.0, 0.1)


def parse(name, scale, *words):
    argv = ['launch.py', f'--config={runs.ROOT}/configs/sweeps/{name}.py:{scale}', *words]
    return command_line.parse(argv, studies=True)


@pytest.mark.parametrize(('name', 'scale'), [('digits', 'smoke'), ('mnist', 'cpu')])
def test_every_sweep_resolves_and_tunes_on_seeds_that_no_study_has(name, scale):
    sweep = parse(name, scale).config.sweep
    sweeps.check(sweep)
    assert (sweep.name, sweep.scale, bool(sweep.warning)) == (name, scale, scale == 'smoke')
    assert len(sweep.entries) == 9
    studies = importlib.import_module('configs.studies.scales').SEEDS
    assert not set(sweep.seeds) & {seed for seeds in studies.values() for seed in seeds}
    for entry in sweep.entries:
        job = sweeps.job(sweep, entry, sweeps.untuned(sweep, entry))
        assert job.seeds == (100, 101)
        assert ' --config.data.eval_split=validation ' in job.command()


def test_the_command_changes_trials_and_methods_and_their_configuration():
    command = parse('digits', 'smoke', '--config.sweep_trials=7', '--config.sweep_methods=semisfl,FedMatch')
    sweep = sweeps.with_given(command.config.sweep, command.given)
    assert ([entry.title for entry in sweep.entries], sweep.trials) == (['FedMatch', 'SemiSFL'], 7)
    sweep = sweeps.with_given(command.config.sweep, {'lr': 0.1, 'seeds': (103,)})
    entry = sweep.entries[-1]
    assert sweeps.untuned(sweep, entry)['lr'] == 0.1
    assert sweeps.settings(sweep, {'lr': 0.05})['lr_min'] == 0.0025  # half of its 0.005, as 0.05 is of 0.1
    assert sweeps.job(sweep, entry, {'lr': 0.05}).changes['seed'] == 103


def test_a_range_of_whole_numbers_is_of_floats_where_the_key_is():
    (entry,) = toy(sweeps.entry('semisfl', ranges={'momentum': linear(0, 1), 'seed': linear(0, 1)})).entries
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
        (lambda: toy(seeds=()), r'config\.seeds'),
        (lambda: toy(sweeps.entry('semisfl', ranges={})), 'SemiSFL: semisfl'),
        (lambda: toy('semisfl'), r"'semisfl' is no method of a sweep; write sweeps\.entry"),
        (lambda: toy(sweeps.entry('semisfl', ranges={'lr': (0.1, 1.0)})), r'config\.lr: a tuple is no range'),
        (lambda: toy(sweeps.entry('semisfl', ranges=FOREIGN)), r'SemiSFL: .*semifl\.mixup_alpha'),
        (lambda: toy(sweeps.entry('semisfl'), sweeps.entry('semisfl')), "'SemiSFL'"),
        (lambda: toy(lr=1.0), r'config\.lr=1\.0'),
        (lambda: toy(sweeps.entry('semisfl', ranges={'momentum': linear(0.0, 1.5)})), r'config\.momentum=1\.5'),
        (lambda: sweeps.with_given(toy(), {'seed': 1}), r'config\.seed .*config\.seeds'),
        (lambda: sweeps.with_given(toy(), {'algorithm': 'fedavg'}), r'config\.algorithm .*config\.sweep_methods'),
        (lambda: sweeps.with_given(toy(), {'sweep_methods': ('fedavg',)}), "'fedavg'"),
        (lambda: parse('digits', 'huge').config.sweep, "'huge'"),
    ],
)
def test_a_mistake_in_a_sweep_is_named(make, named):
    with pytest.raises(UserError, match=named):
        sweeps.check(make())


def test_a_trial_of_ones_own_file_is_started_from_it(tmp_path):
    file = tmp_path / 'mine.py'
    file.write_text('from configs import digits\n\ndef get_config():\n    return digits.get_config()\n')
    sweep = sweeps.sweep('mine', str(file), [sweeps.entry('semisfl')], sweeps_toy.CHANGES, 1)
    sweeps.check(sweep)
    job = sweeps.job(sweep, sweep.entries[0], sweeps.untuned(sweep, sweep.entries[0]))
    assert job.name.startswith('mine-')
    assert f'python -m semisfl_jax --config={file} ' in job.command()


def test_rounds_after_which_a_trial_can_stop():
    assert search.stop_rounds(40, 1) == [10, 20, 30]
    assert search.stop_rounds(40, 8) == [16, 24, 32]  # those evaluated
    assert search.stop_rounds(3, 1) == [1, 2]
    assert search.stop_rounds(1, 1) == search.stop_rounds(10, 50) == []


def test_of_an_error_the_lowest_is_the_best():
    errors = [search.Trial({}, search.COMPLETE, error, {}, 8, 'run', 'depth_rmse') for error in (0.5, 0.25, 0.75)]
    assert search.Result(sweeps_toy.ENTRIES[0], errors).best == 1
    assert search._direction(errors[0]) == 'minimize'
