"""Several seeds in one program: every trial is the run of its seed alone, and images are held and streamed once."""

import json
import signal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import semisfl_jax as sfl
from semisfl_jax import config as config_lib
from semisfl_jax import runs as runs_lib
from semisfl_jax.core import frequency
from semisfl_jax.training import checkpoint, experiment, load, loop
from semisfl_jax.training import inputs as inputs_lib
from semisfl_jax.training.driver import Driver, init_state
from tests.helpers import runs
from tests.helpers.kills import KILL
from tests.helpers.marks import slow_but
from tests.helpers.one_line import assert_one_line

SEEDS = (2, 0, 5)  # the tiny run's K_s falls later with seed 2 than with seed 0
TOLERANCE = 2e-4  # of a batched program, relative, on losses after four rounds
LOOP = {'seeds': SEEDS, 'parallel__trials': 'loop'}
SOME = {'threshold': 0.125}  # with which some pseudo-labels count, and K_s still falls


def seeds_of(folder):
    return {seed: folder / f'seed_{seed}' for seed in SEEDS}


def state_of(folder):
    """The state after the last round of a tiny run of one trial."""
    return load.state(folder, load.experiment(folder))[1]


def assert_lines_close(folder, expected, tolerance=TOLERANCE):
    """metrics.jsonl of two runs, up to rounding: counts are equal, an accuracy may differ by two of 360 images."""
    for ours, theirs in zip(runs.records(folder), runs.records(expected), strict=True):
        assert ours.keys() == theirs.keys()
        for key in ours.keys() - set(runs.TIMES):
            if theirs[key] is None:
                assert ours[key] is None
            elif key in ('teacher_accuracy', 'student_accuracy'):
                assert abs(ours[key] - theirs[key]) <= 2.001 / 360
            else:
                assert ours[key] == pytest.approx(theirs[key], rel=tolerance, abs=1e-6), (ours['round'], key)


@pytest.fixture(scope='module')
def single(tmp_path_factory):
    """Runs of four rounds, one for each seed."""
    folder = tmp_path_factory.mktemp('single')
    for seed in SEEDS:
        assert runs.run(folder / f'seed_{seed}', seed=seed, **SOME) == 0
    return folder


@pytest.fixture(scope='module')
def together(tmp_path_factory):
    """The same seeds in one program, one trial after another; and how often the round was traced."""
    folder, traces = tmp_path_factory.mktemp('together') / 'run', []
    with pytest.MonkeyPatch.context() as patch:
        runs.change_rounds(patch, lambda round_: lambda *inputs: (traces.append(1), round_(*inputs))[1])
        assert runs.run(folder, **LOOP, **SOME) == 0
    return folder, len(traces)


@pytest.mark.as_for_users
def test_trials_in_turn_write_the_bytes_of_single_runs(single, together):
    folder, traces = together
    k_s, masks = set(), []
    for seed, trial_folder in seeds_of(folder).items():
        single_folder = single / trial_folder.name
        assert runs.lines(trial_folder) == runs.lines(single_folder)
        for name in ('partition.npz', 'config.json'):
            assert (trial_folder / name).read_bytes() == (single_folder / name).read_bytes()
        assert json.loads((trial_folder / 'config.json').read_text())['seed'] == seed
        ours, theirs = state_of(trial_folder), state_of(single_folder)
        assert ours.round == theirs.round == 4
        for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_array_equal(a, b)
        k_s.add(tuple(record['k_s'] for record in runs.records(trial_folder)))
        masks += [record['mask_rate'] for record in runs.records(trial_folder)]
    assert len(k_s) >= 2, 'the trials should differ in K_s'
    assert any(0 < rate < 1 for rate in masks)
    assert traces == 1


@pytest.mark.slow
def test_trials_at_once_equal_single_runs_up_to_rounding(single, tmp_path):
    """K_s differs between the trials in the last two rounds, so finished trials wait for the longest."""
    assert runs.run(tmp_path, seeds=SEEDS, parallel__trials='vmap', **SOME) == 0
    for trial_folder in seeds_of(tmp_path).values():
        assert_lines_close(trial_folder, single / trial_folder.name)
        state, expected = (state_of(home) for home in (trial_folder, single / trial_folder.name))
        for a, b in zip(jax.tree.leaves(state), jax.tree.leaves(expected), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
        assert state.step == sum(record['k_s'] for record in runs.records(trial_folder))


CHEAP = {'algorithm': 'supervised_only'}


@pytest.mark.parametrize('seeds', [pytest.param((7,), marks=pytest.mark.slow), SEEDS])
def test_the_summary_has_means_and_deviations_over_seeds(seeds, tmp_path, capsys):
    settings = CHEAP | {'seeds': seeds, 'rounds': 1, 'parallel__trials': 'loop'}
    assert runs.run(tmp_path, **settings) == 0
    homes = [tmp_path / f'seed_{seed}' for seed in seeds]
    assert {path.name for path in tmp_path.iterdir()} >= {'config.json', *(home.name for home in homes)}
    assert runs_lib.trials(tmp_path) == sorted(homes)
    summary, *of_trials = (json.loads((home / 'summary.json').read_text()) for home in (tmp_path, *homes))
    assert [trial['seed'] for trial in summary['trials']] == [trial['seed'] for trial in of_trials] == list(seeds)
    values = [trial['final_accuracy'] for trial in of_trials]
    error = np.std(values, ddof=1) / len(seeds) ** 0.5 if len(seeds) > 1 else None
    assert summary['final_accuracy'] == pytest.approx({'mean': np.mean(values), 'standard_error': error})
    assert (summary['rounds'], summary['headline']) == (1, 'student')
    assert summary['trial_map'] == ('loop' if len(seeds) > 1 else '')
    # the seconds of a round are those of all trials, in every trial, and above them they count once
    first, *others = (runs.records(home)[0] for home in homes)
    assert all(record['wall_seconds'] == first['wall_seconds'] for record in others)
    assert first['images_per_second'] == pytest.approx(len(seeds) * 8 * 4 / first['wall_seconds'], rel=0.02)
    assert summary['wall_seconds'] == of_trials[0]['wall_seconds']
    assert of_trials[0]['trials_in_program'] == len(seeds)

    before = runs.files(tmp_path)
    capsys.readouterr()
    assert runs.run(tmp_path, **settings) == 0  # finished: left alone
    printed = capsys.readouterr().out
    error_text = '' if error is None else f' ± {100 * error:.2f}'
    assert f'student accuracy: final {100 * np.mean(values):.2f}{error_text}%' in printed
    assert runs.run(tmp_path, **(settings | {'seeds': (0, 1)})) == 2
    assert_one_line(capsys.readouterr().err, ['seeds', '[0, 1]'])
    assert runs.run(tmp_path, rounds=1, **CHEAP) == 2
    assert runs.run(homes[0], **(settings | {'seeds': (0, 1)})) == 2
    assert runs.files(tmp_path) == before


# Three trials write a line each per round, and save in the rounds 2 and 4.
KILLED_AT = {
    'after the first of the three lines of round 3': ('metrics.append', 8),
    'at the first save, after that of the first trial': ('checkpoint.save', 2),
    'at the second save, after that of the second trial': ('checkpoint.save', 6),
}


@pytest.mark.slow
@pytest.mark.parametrize('moment', KILLED_AT)
def test_a_killed_run_goes_on_to_the_same_bytes(tmp_path, capsys, moment):
    settings = LOOP | CHEAP | ({'checkpoints_kept': 1} if 'second save' in moment else {})
    function, call = KILLED_AT[moment]
    prelude = f"""{KILL}
import itertools
from semisfl_jax.training import checkpoint, metrics
calls, real = itertools.count(1), {function}
{function} = lambda *arguments: kill() if next(calls) == {call} else real(*arguments)"""
    killed = runs.run_process(tmp_path / 'run', prelude, **settings)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert not (tmp_path / 'run' / 'summary.json').exists()
    assert runs.run(tmp_path / 'run', **settings) == 0
    assert ('resuming from' in capsys.readouterr().out) == ('first save' not in moment)
    assert runs.run(tmp_path / 'undisturbed', **settings) == 0
    for trial_folder in seeds_of(tmp_path / 'run').values():
        assert runs.lines(trial_folder) == runs.lines(tmp_path / 'undisturbed' / trial_folder.name)
        assert checkpoint.rounds_saved(trial_folder / 'checkpoints') == [2, 4][-settings.get('checkpoints_kept', 2) :]
    assert json.loads((tmp_path / 'run' / 'summary.json').read_text())['rounds'] == 4


@pytest.mark.slow
def test_a_trial_that_went_on_alone_is_neither_cut_nor_in_the_way(tmp_path, capsys):
    assert runs.run(tmp_path, seeds=(0, 1), rounds=2, **CHEAP) == 0
    assert runs.run(tmp_path / 'seed_1', seed=1, rounds=4, **CHEAP) == 0
    before = runs.files(tmp_path)
    capsys.readouterr()
    for rounds in (2, 3):  # finished without it, and to be trained further
        assert runs.run(tmp_path, seeds=(0, 1), rounds=rounds, **CHEAP) == 2
        assert_one_line(capsys.readouterr().err, ['seed_1', f'config.rounds={rounds}'])
        assert runs.files(tmp_path) == before
    assert runs.run(tmp_path, seeds=(0, 1), rounds=5, **CHEAP) == 0
    assert 'resuming from the checkpoint of round 2' in capsys.readouterr().out  # that of the other
    assert runs.run(tmp_path / 'alone', seed=1, rounds=5, **CHEAP) == 0
    assert runs.lines(tmp_path / 'seed_1') == runs.lines(tmp_path / 'alone')


def test_trials_are_stacked_and_split_in_their_order():
    experiments = experiment.build_trials(config_lib.trials(config_lib.resolve(runs.config(seeds=SEEDS))))
    driver = Driver(experiments, 'loop')
    for trees in ([np.full(2, seed) for seed in SEEDS], [jnp.full(2, seed) for seed in SEEDS]):
        for part, tree in zip(driver.split(driver.stack(trees)), trees, strict=True):
            np.testing.assert_array_equal(part, tree)
    controllers = [frequency.init(trial.frequency)._replace(k_s=np.int64(5 + r)) for r, trial in enumerate(experiments)]
    keys, *_, k_s = driver.arguments(None, controllers, next(driver.inputs(0)))
    assert k_s.tolist() == [5, 6, 7]
    for key, trial in zip(keys, experiments, strict=True):
        assert key == trial.key


@pytest.mark.parametrize('trial_map', slow_but(['loop', 'vmap'], 'loop'))
def test_images_are_held_once_and_never_copied(trial_map):
    experiments = experiment.build_trials(config_lib.trials(config_lib.resolve(runs.config(seeds=SEEDS))))
    driver = Driver(experiments, trial_map)
    state = jax.eval_shape(lambda: driver.stack([trial.algorithm.init(trial.key) for trial in experiments]))
    federation, cohorts, _ = next(driver.inputs(0))
    k_s = jnp.ones(len(SEEDS), jnp.int32)
    program = jax.make_jaxpr(driver.round())(driver.key, state, federation, cohorts, k_s)
    images = len(experiments[0].dataset.train_images)
    assert federation.server_images.shape == federation.client_images.shape == (images, 8, 8, 1)
    for trial in experiments:
        assert trial.federation.server_images is trial.federation.client_images is federation.server_images
        rows = np.asarray(trial.federation.server_index)
        np.testing.assert_array_equal(rows, trial.partition.server_index)  # every image is somebody's
        np.testing.assert_array_equal(federation.server_images[rows], trial.dataset.train_images[rows])
    assert federation.index.shape[:2] == (3, 10)
    shapes = {variable.aval.shape for equation in runs.equations(program.jaxpr) for variable in equation.outvars}
    assert len(shapes) > 50
    assert not [shape for shape in shapes if images in shape]


@pytest.mark.parametrize('seeds', [(), SEEDS])
def test_rows_of_images_on_the_host_are_drawn_before_the_round_ahead_of_theirs(seeds, monkeypatch):
    """A device that computes a round would only begin with them after it."""
    drawn, rows = [], inputs_lib.rows
    monkeypatch.setattr(inputs_lib, 'rows', lambda *arguments: drawn.append(arguments) or rows(*arguments))
    config = config_lib.resolve(runs.config(seeds=seeds, data__residency='host'))
    driver = Driver(experiment.build_trials(config_lib.trials(config)), 'loop')
    for round_, _ in zip(range(2), driver.inputs(0), strict=False):
        assert len(drawn) == (round_ + 2) * max(len(seeds), 1)


def test_streamed_images_and_failures_are_those_of_each_trial():
    changes = {'data__residency': 'host', 'failures__before': 0.3, 'failures__inside': 0.3}
    config = config_lib.resolve(runs.config(seeds=SEEDS, **changes))
    experiments = experiment.build_trials(config_lib.trials(config))
    federation, cohorts, _ = next(Driver(experiments, 'loop').inputs(3))
    assert federation.client_images.shape == (3, 3 * 2 * 4, 8, 8, 1)  # R, A * K_u * B
    labeled = set().union(*(trial.partition.server_index.tolist() for trial in experiments))
    assert federation.server_images.shape == (len(labeled), 8, 8, 1)
    for r, trial_config in enumerate(config_lib.trials(config)):
        alone, cohort, _ = next(Driver([experiment.build(trial_config)]).inputs(3))
        ours = [federation.client_images[r], federation.client_labels[r]]
        ours += [federation.server_images[federation.server_index[r]], *(leaf[r] for leaf in jax.tree.leaves(cohorts))]
        theirs = [alone.client_images, alone.client_labels, alone.server_images[alone.server_index]]
        for a, b in zip(ours, theirs + jax.tree.leaves(cohort), strict=True):
            np.testing.assert_array_equal(a, b)


def test_seeds_that_leave_devices_without_work_are_told(monkeypatch, caplog):
    """Five seeds divide by no number of four devices but 1."""
    monkeypatch.setattr(jax, 'device_count', lambda: 4)
    config = runs.config(seeds=(0, 1, 2, 3, 4), algorithm='supervised_only', rounds=1, parallel__devices=0)
    loop.train(config, bar=False)
    assert '5 seeds share 1 of 4 devices' in caplog.text


@pytest.mark.as_for_users
def test_a_first_state_has_the_bytes_of_full_optimization():
    config = sfl.get_config('digits', {'data.num_unlabeled': 100})
    trial = experiment.build(config_lib.resolve(config))
    fast, usual = (jax.tree.leaves(make(trial.key)) for make in (init_state(trial), jax.jit(trial.algorithm.init)))
    assert len(fast) > 20
    for one, other in zip(fast, usual, strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()
