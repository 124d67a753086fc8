"""Several seeds in one program: every trial is the run of its seed alone."""

import json
import re
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from semisfl_jax import config as config_lib
from semisfl_jax import runs as runs_lib
from semisfl_jax.training import checkpoint
from tests import runs
from tests.one_line import assert_one_line
from tests.trials import SEEDS, WITHOUT_VIEWS, assert_lines_close, seeds_of, state_of


@pytest.fixture(scope='module')
def single(tmp_path_factory):
    """Runs of four rounds, one for each seed."""
    folder = tmp_path_factory.mktemp('single')
    for seed in SEEDS:
        assert runs.run(folder / f'seed_{seed}', seed=seed) == 0
    return folder


@pytest.fixture(scope='module')
def together(tmp_path_factory):
    """The same seeds in one program, one trial after another; and how often the round was traced."""
    folder, traces = tmp_path_factory.mktemp('together') / 'run', []
    with pytest.MonkeyPatch.context() as patch:
        runs.change_rounds(patch, lambda round_: lambda *inputs: (traces.append(1), round_(*inputs))[1])
        assert runs.run(folder, seeds=SEEDS, parallel__trials='loop') == 0
    return folder, len(traces)


# --- equality


@pytest.mark.as_for_users
def test_trials_in_turn_write_the_bytes_of_single_runs(single, together):
    folder, traces = together
    k_s = set()
    for seed, trial_folder in seeds_of(folder).items():
        single_folder = single / trial_folder.name
        assert runs.lines(trial_folder) == runs.lines(single_folder)
        assert (trial_folder / 'partition.npz').read_bytes() == (single_folder / 'partition.npz').read_bytes()
        assert (trial_folder / 'config.json').read_bytes() == (single_folder / 'config.json').read_bytes()
        assert json.loads((trial_folder / 'config.json').read_text())['seed'] == seed
        ours, theirs = state_of(trial_folder), state_of(single_folder)
        assert ours.round == theirs.round == 4
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_array_equal(a, b)
        k_s.add(tuple(record['k_s'] for record in runs.records(trial_folder)))
    assert len(k_s) >= 2, 'the trials should differ in K_s'
    assert traces == 1


@pytest.mark.slow
def test_trials_at_once_equal_single_runs_up_to_rounding(single, tmp_path):
    """K_s differs between the trials in the last two rounds, so finished trials wait for the longest."""
    assert runs.run(tmp_path, seeds=SEEDS, parallel__trials='vmap') == 0
    for trial_folder in seeds_of(tmp_path).values():
        assert_lines_close(trial_folder, single / trial_folder.name)
        state, expected = (state_of(home) for home in (trial_folder, single / trial_folder.name))
        for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
        assert state.step == sum(record['k_s'] for record in runs.records(trial_folder))


@pytest.mark.as_for_users
def test_images_on_the_host_change_no_byte(single, tmp_path):
    settings = {'data__residency': 'host', 'parallel__trials': 'loop'}
    assert runs.run(tmp_path, seeds=SEEDS, **settings) == 0
    for trial_folder in seeds_of(tmp_path).values():
        assert runs.lines(trial_folder) == runs.lines(single / trial_folder.name)


SWITCHES = {
    'rounds': 3,
    'pre_rounds': 1,
    'data__client_labels': 16,
    'federation__mu': 1,
    'threshold': 0.15,
    **WITHOUT_VIEWS,
}


@pytest.fixture(scope='module')
def switched(tmp_path_factory):
    """Single runs with labels at clients of unequal sizes and a first round without clients."""
    folder = tmp_path_factory.mktemp('switched')
    for seed in (4, 1):
        assert runs.run(folder / f'{seed}', seed=seed, federation__partition='dirichlet', **SWITCHES) == 0
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(('trial_map', 'residency'), [('loop', 'device'), ('vmap', 'host')])
def test_pre_rounds_labels_at_clients_and_unequal_sizes(switched, tmp_path, trial_map, residency):
    """Up to rounding in turn, too: XLA moves code out of loops inside the branch of `pre_rounds` in its own way."""
    settings = {**SWITCHES, 'data__residency': residency, 'parallel__trials': trial_map}
    assert runs.run(tmp_path, seeds=(4, 1), federation__partition='dirichlet', **settings) == 0
    for seed in (4, 1):
        trial_folder = tmp_path / f'seed_{seed}'
        assert [record['loss_clustering'] is None for record in runs.records(trial_folder)] == [True, False, False]
        assert_lines_close(trial_folder, switched / f'{seed}')


def test_one_seed_alone_has_its_folder_too(tmp_path):
    settings = {'algorithm': 'supervised_only', 'rounds': 1}
    assert runs.run(tmp_path / 'one', seeds='7', **settings) == 0
    assert runs.run(tmp_path / 'alone', seed=7, **settings) == 0
    assert runs.lines(tmp_path / 'one' / 'seed_7') == runs.lines(tmp_path / 'alone')
    summary = json.loads((tmp_path / 'one' / 'summary.json').read_text())
    assert summary['final_accuracy']['standard_error'] is None


# --- outputs


@pytest.mark.slow
def test_summary_over_the_seeds(together, capsys):
    folder, _ = together
    names = {path.name for path in folder.iterdir()}
    assert names == {'.lock', 'config.json', 'seed_0', 'seed_2', 'seed_5', 'summary.json'}
    assert runs_lib.trials(folder) == sorted(seeds_of(folder).values())
    summary = json.loads((folder / 'summary.json').read_text())
    trial_summaries = [json.loads((home / 'summary.json').read_text()) for home in seeds_of(folder).values()]
    assert [trial['seed'] for trial in summary['trials']] == [trial['seed'] for trial in trial_summaries] == list(SEEDS)
    values = [trial['final_accuracy'] for trial in trial_summaries]
    mean = sum(values) / 3
    error = (sum((value - mean) ** 2 for value in values) / 2 / 3) ** 0.5
    assert summary['final_accuracy'] == pytest.approx({'mean': mean, 'standard_error': error})
    assert (summary['rounds'], summary['headline'], summary['trial_map']) == (4, 'teacher', 'loop')
    # the seconds of a round are those of all trials, in every trial, and above them they count once
    lines = [runs.records(home) for home in seeds_of(folder).values()]
    for same in zip(*lines, strict=True):
        assert len({record['wall_seconds'] for record in same}) == 1
        images = sum(record['k_s'] * 4 + 2 * 4 * 3 for record in same)
        assert same[0]['images_per_second'] == pytest.approx(images / same[0]['wall_seconds'], rel=0.02)
    assert summary['wall_seconds'] == trial_summaries[0]['wall_seconds']
    assert trial_summaries[0]['trials_in_program'] == 3

    before = runs.files(folder)
    assert runs.run(folder, seeds=SEEDS, parallel__trials='loop') == 0  # finished: left alone
    assert runs.files(folder) == before
    *_, means, _, first, _, _, end = capsys.readouterr().out.splitlines()
    assert first.split()[:2] == [str(SEEDS[0]), f'{100 * trial_summaries[0]["final_accuracy"]:.2f}%']
    assert end == f'outputs in {folder}'
    assert f'teacher accuracy {100 * mean:.2f}% ± {100 * error:.2f}% after 4 rounds' in means


# --- runs that end early

KILL = """
import os, signal
from semisfl_jax.training import checkpoint, metrics
def kill_at(module, name, call):
    real, count = getattr(module, name), []
    def function(*arguments):
        count.append(1)
        if len(count) == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments)
    setattr(module, name, function)
"""
CHEAP = {'algorithm': 'supervised_only'}


# Three trials write a line each per round, and save in the rounds 2 and 4.
KILLED_AT = {
    'after the first of the three lines of round 3': ("metrics, 'append', 8", CHEAP),
    'at the first save, after that of the first trial': ("checkpoint, 'save', 2", CHEAP),
    'at the second save, after that of the second trial': ("checkpoint, 'save', 6", {'checkpoints_kept': 1}),
    'after the first summary': ("metrics, 'summarize_trial', 2", CHEAP),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    'moment',
    [pytest.param(name, marks=[] if CHEAP in case else pytest.mark.as_for_users) for name, case in KILLED_AT.items()],
)
def test_a_killed_run_goes_on_to_the_same_bytes(single, tmp_path, capsys, moment):
    call, settings = KILLED_AT[moment]
    settings = {'seeds': SEEDS, 'parallel__trials': 'loop', **settings}
    killed = runs.run_process(tmp_path / 'run', prelude=f'{KILL}\nkill_at({call})', **settings)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / 'run' / 'summary.json').exists()
    assert runs.run(tmp_path / 'run', **settings) == 0
    expected = single
    if 'algorithm' in settings:
        assert runs.run(tmp_path / 'undisturbed', **settings) == 0
        expected = tmp_path / 'undisturbed'
    for trial_folder in seeds_of(tmp_path / 'run').values():
        assert runs.lines(trial_folder) == runs.lines(expected / trial_folder.name)
        assert checkpoint.rounds_saved(trial_folder / 'checkpoints') == [2, 4]
    assert ('resuming from' in capsys.readouterr().out) == ('first save' not in moment)
    assert json.loads((tmp_path / 'run' / 'summary.json').read_text())['rounds'] == 4


@pytest.mark.slow
def test_a_trial_can_go_on_alone_and_all_can_go_further(tmp_path, capsys):
    assert runs.run(tmp_path / 'all', seeds=(0, 1), rounds=2, **CHEAP) == 0
    assert runs.run(tmp_path / 'all' / 'seed_1', seed=1, rounds=3, **CHEAP) == 0
    assert runs.run(tmp_path / 'all', seeds=(0, 1), rounds=4, **CHEAP) == 0
    assert 'resuming from the checkpoint of round 2' in capsys.readouterr().out  # the newest that both have
    for seed in (0, 1):
        assert runs.run(tmp_path / f'{seed}', seed=seed, **CHEAP) == 0
        assert runs.lines(tmp_path / 'all' / f'seed_{seed}') == runs.lines(tmp_path / f'{seed}')


def test_fewer_rounds_than_one_trial_has_are_refused(tmp_path, capsys):
    assert runs.run(tmp_path, seeds=(0, 1), rounds=1, **CHEAP) == 0
    assert runs.run(tmp_path / 'seed_1', seed=1, rounds=3, **CHEAP) == 0
    before = runs.files(tmp_path)
    capsys.readouterr()
    for rounds in (1, 2):  # finished without it, and to be trained further
        assert runs.run(tmp_path, seeds=(0, 1), rounds=rounds, **CHEAP) == 2
        assert_one_line(capsys.readouterr().err, ['seed_1 has already completed round 3', f'config.rounds={rounds}'])
        assert runs.files(tmp_path) == before


def test_nothing_is_overwritten_when_a_trial_is_lost(tmp_path, capsys):
    settings = {'seeds': (0, 1), **CHEAP}
    assert runs.run(tmp_path, rounds=2, **settings) == 0
    for path in sorted((tmp_path / 'seed_1').rglob('*'), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    before = runs.files(tmp_path)
    capsys.readouterr()
    assert runs.run(tmp_path, rounds=4, **settings) == 2
    assert re.match(r'error: .*seed_1/metrics.jsonl does not have the rounds 1 to 2', capsys.readouterr().err)
    assert runs.files(tmp_path) == before


def test_the_trial_whose_loss_is_no_number_is_named(tmp_path, monkeypatch, capsys):
    def change(round_):
        def changed(key, state, *rest):
            state, measured = round_(key, state, *rest)
            bad = (state.round == 3) & (jax.random.key_data(key)[-1] == 1)
            return state, measured | {'loss_supervised': jnp.where(bad, jnp.nan, measured['loss_supervised'])}

        return changed

    runs.change_rounds(monkeypatch, change)
    assert runs.run(tmp_path, seeds=(0, 1, 2), **CHEAP) == 3
    words = ['seed 1: loss_supervised is nan in round 3', 'The checkpoint of round 2 is', 'seed_1']
    assert_one_line(capsys.readouterr().err, words)
    for seed in (0, 1, 2):
        assert checkpoint.rounds_saved(tmp_path / f'seed_{seed}' / 'checkpoints') == [2]
        assert len(runs.records(tmp_path / f'seed_{seed}')) == 2


@pytest.mark.slow
def test_a_folder_of_other_seeds_is_left_alone(together, capsys):
    folder, _ = together
    before = runs.files(folder)
    assert runs.run(folder, seeds=(0, 1), parallel__trials='loop') == 2
    assert 'seeds: [2, 0, 5] -> [0, 1]' in capsys.readouterr().err
    assert runs.run(folder) == 2
    assert runs.run(folder / 'seed_0', seeds=(0, 1)) == 2
    assert runs.files(folder) == before


def test_the_configuration_of_a_trial_is_that_of_its_run_alone():
    config = config_lib.resolve(runs.config(seeds=SEEDS, parallel__trials='vmap'))
    for seed, trial_config in zip(SEEDS, config_lib.trials(config), strict=True):
        single_config = config_lib.resolve(runs.config(seed=seed))
        assert trial_config.to_dict() == single_config.to_dict()
        assert config_lib.identity_hash(trial_config) == config_lib.identity_hash(single_config)
        assert trial_config.is_locked
    assert config_lib.trials(single_config) == [single_config]
    assert config_lib.identity_hash(config) != config_lib.identity_hash(config_lib.resolve(runs.config()))


@pytest.mark.as_for_users
def test_failures_of_several_seeds_are_those_of_single_runs(tmp_path):
    settings = {'failures__before': 0.3, 'failures__inside': 0.3}
    assert runs.run(tmp_path / 'all', **settings, seeds=SEEDS, parallel__trials='loop') == 0
    for seed in SEEDS:
        assert runs.run(tmp_path / f'{seed}', **settings, seed=seed) == 0
        assert runs.lines(tmp_path / 'all' / f'seed_{seed}') == runs.lines(tmp_path / f'{seed}')
