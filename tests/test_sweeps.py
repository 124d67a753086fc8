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

SEMIFL = algorithms.METHODS['semifl']
SWEEPS = ('digits', 'mnist')


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
        ('clustering_weight', log(0.1, 1.0), "does not read it: 'clustering' is not in its uses"),
        ('fedmatch.lambda_a', log(0.1, 1.0), 'neither an option of the method nor a shared hyper-parameter'),
        ('lerning_rate', log(0.1, 1.0), 'neither an option of the method nor a shared hyper-parameter'),
        ('lr_min', log(0.1, 1.0), 'follows lr in proportion'),
        ('k_u', linear(1, 5), 'how much work a round is'),
        ('pseudo_labels', choice('method', 'true'), 'an oracle'),
        ('semifl.global_momentum', linear(0.0, 1.0), r'must be in \[0, 1\)'),
        ('semifl.order', choice('clients_first', 'clients'), "'clients' is unknown"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused_at_registration(key, range_, why):
    method = dataclasses.replace(SEMIFL, name='mine', group='semifl', ranges={key: range_})
    with pytest.raises(ValueError, match=why):
        algorithms.register(method)
    assert 'mine' not in algorithms.METHODS


def parse(name, scale, *words):
    argv = ['launch.py', f'--config={runs.ROOT}/configs/sweeps/{name}.py:{scale}', *words]
    return command_line.parse(argv, studies=True)


@pytest.mark.parametrize('scale', ['smoke', 'cpu'])
@pytest.mark.parametrize('name', SWEEPS)
def test_every_sweep_resolves_and_tunes_on_seeds_that_no_study_has(name, scale):
    sweep = parse(name, scale).config.sweep
    sweeps.check(sweep)
    assert (sweep.name, sweep.scale, bool(sweep.warning)) == (name, scale, scale == 'smoke')
    assert len(sweep.entries) == 8
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


def toy(*entries, trials=1, seeds=(100,), **changes):
    changes = {key.replace('__', '.'): value for key, value in changes.items()}
    entries = entries or (sweeps.entry('semisfl'),)
    return dataclasses.replace(sweeps_toy.sweep(entries, trials, **changes), seeds=seeds)


FOREIGN = {'semifl.mixup_alpha': log(0.1, 1.0)}


@pytest.mark.parametrize(
    ('make', 'why'),
    [
        (lambda: toy(data__eval_split='test', data__num_validation=0), 'eval_split=.test.: a sweep needs .validation.'),
        (lambda: toy(trials=0), 'config.sweep_trials=0: use 1'),
        (lambda: toy(seeds=()), 'has no tuning seeds; write --config.seeds'),
        (lambda: toy(sweeps.entry('semisfl', ranges={})), 'toy, SemiSFL: semisfl has no ranges to search; add some'),
        (lambda: toy(sweeps.entry('semisfl', ranges=FOREIGN)), 'semifl.mixup_alpha, which semisfl does not read'),
        (lambda: toy(sweeps.entry('semisfl'), sweeps.entry('semisfl')), "two methods called 'SemiSFL'"),
        (lambda: toy(lr=1.0), r'config.lr=1.0, .* 0.002 to 0.2 \(log\)'),
        (lambda: toy(sweeps.entry('semisfl', ranges={'momentum': linear(0.0, 1.5)})), 'config.momentum=1.5'),
        (lambda: toy(sweeps.entry('semisf')), "algorithm='semisf' is unknown"),
        (lambda: toy(lerning_rate=1.0), 'config.lerning_rate is not a key'),
    ],
)
def test_a_mistake_in_a_sweep_is_one_line(make, why):
    with pytest.raises(UserError, match=why) as caught:
        sweeps.check(make())
    assert '\n' not in str(caught.value)


@pytest.mark.parametrize(
    ('given', 'why'),
    [
        ({'seed': 1}, 'config.seed cannot be changed in a sweep; write --config.seeds=100,101'),
        ({'algorithm': 'fedavg'}, 'write --config.sweep_methods=NAME'),
        ({'setting': 'official'}, "leave it at 'harmonized'"),
        ({'sweep_methods': ('fedavg',)}, "'fedavg' is not a method of toy; use one of semisfl, SemiSFL"),
    ],
)
def test_a_change_that_a_sweep_cannot_have_is_one_line(given, why):
    with pytest.raises(UserError, match=why):
        sweeps.with_given(toy(), given)


@pytest.mark.parametrize(
    ('scale', 'why'), [('', 'a sweep needs a scale, after a colon'), ('huge', "unknown scale 'huge'")]
)
def test_a_scale_that_is_missing_or_unknown(scale, why):
    with pytest.raises(UserError, match=why):
        importlib.import_module('configs.sweeps.digits').get_config(scale)


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
    assert search.stop_rounds(1, 1) == []
    assert search.stop_rounds(10, 50) == []
