"""What a run does with the answers of its callbacks: who stops, when, and what their folders hold then."""

import json
import re

import jax
import numpy as np
import pytest

import semisfl_jax as sfl
from semisfl_jax.training import checkpoint, loop, outputs
from tests.helpers import runs

CHEAP = {**runs.TINY, 'algorithm': 'supervised_only', 'rounds': 6}
SEEDS = {**CHEAP, 'seeds': (3, 0, 5), 'checkpoint_every': 6}


def config(**changes):
    return sfl.get_config('digits', CHEAP | changes)


def asks(**reasons):
    """A callback that gives reasons after rounds: r2='enough', or r2={3: 'enough'}; and once it has resumed."""

    def call(event):
        if isinstance(event, sfl.events.RoundDone | sfl.events.Resumed):
            done = {seed: len(lines) for seed, lines in event.lines.items()}
            wishes = [dict.fromkeys(done, why) if isinstance(why, str) else why for why in reasons.values()]
            numbers = [int(name[1:]) for name in reasons]
            return {
                s: why for n, wish in zip(numbers, wishes, strict=True) for s, why in wish.items() if done.get(s) == n
            }
        return None

    return call


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    """Three seeds that nothing stopped."""
    folder = tmp_path_factory.mktemp('whole') / 'run'
    sfl.train(sfl.get_config('digits', SEEDS), folder)
    return folder


def test_all_stop_for_one_text_and_the_same_command_goes_on(tmp_path, whole, capsys):
    settings = {key: value for key, value in SEEDS.items() if key != 'seeds'} | {'seed': 5}
    stopped = sfl.train(sfl.get_config('digits', settings), tmp_path, [lambda _: {5: ''}, asks(r2='enough')])
    assert (stopped.summary['rounds'], stopped.summary['stopped_early']) == (2, 'enough')
    assert json.loads((tmp_path / 'summary.json').read_text()) == stopped.summary
    assert runs.lines(tmp_path) == runs.lines(whole / 'seed_5')[:2]
    assert sfl.load_trained(tmp_path).round == 2
    assert 'stopped early after 2 rounds: enough' in repr(stopped)
    before = runs.files(tmp_path)
    again = sfl.train(sfl.get_config('digits', settings), tmp_path, [asks(r2='enough')])
    assert again.summary == stopped.summary
    assert again.metrics['student_accuracy'].shape == (2,)
    assert runs.files(tmp_path) == before
    assert runs.command('verify', tmp_path) == 0

    gone_on = sfl.train(sfl.get_config('digits', settings), tmp_path)
    assert (gone_on.summary['rounds'], 'stopped_early' in gone_on.summary) == (6, False)
    assert runs.lines(tmp_path) == runs.lines(whole / 'seed_5')
    assert capsys.readouterr().err == ''


def test_a_wish_waits_for_an_evaluation(tmp_path):
    def call(event):
        return 'enough' if isinstance(event, sfl.events.RoundDone) else ''

    result = sfl.train(config(eval_every=3), tmp_path, [call])
    assert result.summary['rounds'] == 3
    assert np.isfinite(result.metrics['student_accuracy']).tolist() == [False, False, True]


def test_of_three_seeds_two_stop_alone_and_go_on_alone(tmp_path, whole, capsys):
    """Seed 0 after two rounds, seed 5 after four; then the process dies, and the next one is asked again."""
    both = {'r2': {0: 'enough'}, 'r4': {5: 'me too'}}

    def die(event):
        if isinstance(event, sfl.events.RoundDone) and event.round == 5:
            assert list(event.lines) == [3]
            raise RuntimeError('killed')

    made = sfl.get_config('digits', SEEDS)
    with pytest.raises(RuntimeError, match='killed'):
        sfl.train(made, tmp_path, [asks(**both), die])
    homes = [tmp_path / f'seed_{seed}' for seed in (3, 0, 5)]
    assert [(home / 'summary.json').exists() for home in homes] == [False, True, True]
    assert [checkpoint.rounds_saved(home / 'checkpoints') for home in homes] == [[2, 4], [2], [2, 4]]

    result = sfl.train(made, tmp_path, [asks(**both)])
    assert [(trial['seed'], trial['rounds']) for trial in result.summary['trials']] == [(3, 6), (0, 2), (5, 4)]
    assert result.summary['rounds'] == 2
    assert '2 to 6 rounds)' in repr(result)
    assert 'seed 0: stopped early after 2 rounds: enough' in repr(result)
    assert [int(state.round) for state in result.state] == [6, 2, 4]
    for home, rounds in zip(homes, (6, 2, 4), strict=True):
        assert runs.lines(home) == runs.lines(whole / home.name)[:rounds]
        assert outputs.last_round(home) == rounds
    assert np.isfinite(result.metrics['student_accuracy']).sum(axis=1).tolist() == [6, 2, 4]
    assert runs.command('verify', tmp_path) == 0

    capsys.readouterr()
    assert runs.command('compare', tmp_path) == 0
    printed = capsys.readouterr()
    assert re.search(r'^Supervised-only +3 ', printed.out, re.MULTILINE)  # one group of three seeds
    assert f'{homes[1]} stopped early, after 2 rounds: enough\n' in printed.err
    assert runs.command('plots', tmp_path, f'--out={tmp_path / "figures"}', '--only=accuracy_rounds') == 0
    assert capsys.readouterr().err == printed.err

    gone_on = sfl.train(made, tmp_path, [asks(r6={3: 'too late: it has all'})])
    for home, state in zip(homes, gone_on.state, strict=True):
        assert runs.lines(home) == runs.lines(whole / home.name)
        assert jax.tree.all(jax.tree.map(np.array_equal, state, sfl.load_trained(whole / home.name).state))
    assert not any('stopped_early' in (home / 'summary.json').read_text() for home in homes)


def test_all_that_is_left_waits_for_no_round():
    """A seed that stops while the others have all their rounds ends the run."""
    done = loop.Parked(6, None, None, stopped=False)
    ended = loop.Parked(2, None, None, stopped=True)
    progress = loop.LoopState(2, None, [], [[], []], [], {0: done, 1: ended})
    assert not progress.goes_on(6)
    assert progress.goes_on(7)
    assert progress._replace(parked={1: ended}).goes_on(6)
