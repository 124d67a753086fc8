"""Training from Python, arrays and states in place of files, events in place of prints; and runs that are opened
again."""

import contextlib
import json
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import semisfl_jax as sfl
from semisfl_jax.base import machine
from semisfl_jax.base.errors import UserError
from semisfl_jax.training import events, interrupt, memory
from tests.helpers import runs


def config(**changes):
    return sfl.get_config('digits', runs.TINY | changes)


CHEAP = config(algorithm='supervised_only', rounds=2)


def equal(state, other):
    return jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), state, other))


def check_arrays(arrays, records):
    """Arrays against lines of metrics.jsonl."""
    assert arrays.keys() == set().union(*records)
    for name, values in arrays.items():
        expected = [np.nan if record.get(name) is None else record[name] for record in records]
        np.testing.assert_array_equal(values, expected, err_msg=name)


def check_same(ours, theirs):
    """Two results of a run."""
    assert ours.summary == theirs.summary
    assert ours.metrics.keys() == theirs.metrics.keys()
    for name, values in theirs.metrics.items():
        np.testing.assert_array_equal(ours.metrics[name], values, err_msg=name)
    assert equal(ours.state, theirs.state)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A run with a folder, its result, and the events that it reported."""
    folder, reported = tmp_path_factory.mktemp('trained') / 'run', []
    return folder, sfl.train(config(), folder, [reported.append]), reported


def test_result_and_events_are_what_the_files_say(trained):
    folder, result, reported = trained
    assert result.summary == json.loads((folder / 'summary.json').read_text())
    check_arrays(result.metrics, runs.records(folder))
    assert result.metrics['k_s'].dtype == np.int64
    assert int(result.state.round) == 4
    assert [type(event).__name__ for event in reported] == [
        'Described',
        *('Compiling', 'Compiled') * 2,
        'Started',
        *['RoundDone'] * 4,
        'Finished',
        'Ended',
    ]
    done = [event for event in reported if isinstance(event, events.RoundDone)]
    assert [event.round for event in done] == [1, 2, 3, 4]
    assert done[-1].lines == {0: runs.records(folder)}
    assert reported[-2] == events.Finished(result.summary, folder, earlier=False)
    check_same(pickle.loads(pickle.dumps(result)), result)


def test_a_finished_run_gives_its_result_again(trained, capfd):
    folder, result, _ = trained
    before, reported = runs.files(folder), []
    again = sfl.train(config(), folder, [reported.append])
    assert reported == [events.Finished(result.summary, folder, earlier=True)]
    check_same(pickle.loads(pickle.dumps(again)), result)  # reads the files here
    check_same(again, result)
    assert runs.files(folder) == before
    assert capfd.readouterr() == ('', '')
    (folder / 'metrics.jsonl').rename(folder / 'away')
    with pytest.raises(UserError, match=r'metrics\.jsonl does not have the rounds 1 to'):
        assert sfl.train(config(), folder).metrics
    (folder / 'away').rename(folder / 'metrics.jsonl')


@pytest.mark.slow
def test_without_a_folder_the_same_numbers_and_no_file(trained, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, 'cache_programs', None)  # called, it would fail
    reported = []
    result = sfl.train(config(compilation_cache=False, diagnostics_every=2), None, [reported.append])
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ('', '')
    assert equal(result.state, trained[1].state)
    for name in result.metrics.keys() - set(runs.TIMES):
        np.testing.assert_array_equal(result.metrics[name], trained[1].metrics[name], err_msg=name)
    diagnosed = [event for event in reported if isinstance(event, events.Diagnosed)]
    assert [event.round for event in diagnosed] == [2, 4]
    assert diagnosed[0].arrays[0]['student_test'].sum() == 360  # test images of digits


@pytest.mark.slow
def test_several_seeds_have_a_leading_axis_also_once_resumed(trained, tmp_path):
    sfl.train(config(seeds=(3, 0), rounds=2), tmp_path / 'run')
    reported = []
    result = sfl.train(config(seeds=(3, 0)), tmp_path / 'run', [reported.append])
    (resumed,) = (event for event in reported if isinstance(event, events.Resumed))
    assert (resumed.round, list(resumed.lines)) == (2, [3, 0])
    assert [trial['seed'] for trial in result.summary['trials']] == [3, 0]
    for r, seed in enumerate((3, 0)):
        trial_metrics = {name: values[r] for name, values in result.metrics.items()}
        check_arrays(trial_metrics, runs.records(tmp_path / 'run' / f'seed_{seed}'))
    assert result.metrics['teacher_accuracy'].shape == (2, 4)
    assert jax.tree.structure(result.state[1]) == jax.tree.structure(trained[1].state)


def test_a_callback_that_is_in_no_list_is_one_line():
    with pytest.raises(UserError, match='give a list'):
        sfl.train(runs.config(), callbacks=print)


def test_a_request_to_stop_is_heard_after_a_round(tmp_path):
    request = interrupt.Request()

    def listen(event):
        request.signum = 15 * isinstance(event, events.RoundDone)

    for folder in (None, tmp_path):
        with pytest.raises(interrupt.Stopped, match='round 1'):
            sfl.train(CHEAP, folder, [listen], interrupts=lambda: contextlib.nullcontext(request))
        request.signum = 0
    assert len(runs.records(tmp_path)) == 1


def test_the_last_round_is_evaluated_whatever_eval_every_is(tmp_path):
    for rounds, judged in ((3, [2, 3]), (4, [2, 3, 4])):  # the second call goes on
        result = sfl.train(config(algorithm='supervised_only', rounds=rounds, eval_every=2), tmp_path)
        scores = result.metrics['student_accuracy']
        assert [number for number, score in enumerate(scores, 1) if np.isfinite(score)] == judged
        assert result.summary['mean_of_last_10_evaluations'] == pytest.approx(np.nanmean(scores))


@pytest.mark.slow
def test_trials_that_do_not_fit_at_once_are_computed_in_turn(monkeypatch, caplog):
    """As many at once as fit: the account of the compiler falls with their number."""
    needs = []

    def check(program, compiled, config):
        if program == 'compiled round':
            needs.append(memory.program_memory(compiled).temporary)
            if len(needs) < 3:
                raise memory.TooLarge('the compiled round needs 9 GiB; use less')

    together = config(seeds=(0, 1, 2, 3), rounds=2, **{'parallel.trials': 'vmap'})
    whole = sfl.train(together)
    monkeypatch.setattr(memory, 'check', check)
    cut = sfl.train(together)
    assert needs == sorted(needs, reverse=True)
    assert needs[2] < 0.6 * needs[0]
    assert [line.partition(': ')[2] for line in caplog.messages if 'at once' in line] == [
        f'{count} of 4 trials are computed at once' for count in (2, 1)
    ]
    for key in ('loss_supervised', 'loss_clustering'):
        np.testing.assert_allclose(cut.metrics[key], whole.metrics[key], rtol=2e-4)
