"""Training from Python: arrays and states in place of files, events in place of prints."""

import collections
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import semisfl_jax as sfl
from semisfl_jax import algorithms
from semisfl_jax.training import events, experiment, inputs, interrupt
from tests import runs


def config(**changes):
    return sfl.get_config('digits', runs.TINY | changes)


def equal(state, other):
    return jax.tree.all(jax.tree.map(lambda a, b: bool(jnp.array_equal(a, b)), state, other))


def check_arrays(arrays, records):
    """Arrays against lines of metrics.jsonl."""
    assert arrays.keys() == set().union(*records)
    for name, values in arrays.items():
        expected = [np.nan if record.get(name) is None else record[name] for record in records]
        np.testing.assert_array_equal(values, expected, err_msg=name)


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A run with a folder, its result, and the events that it reported."""
    folder, reported = tmp_path_factory.mktemp('trained') / 'run', []
    return folder, sfl.train(config(), folder, reported.append), reported


def test_the_result_is_what_the_files_say(trained):
    folder, result, _ = trained
    assert result.summary == json.loads((folder / 'summary.json').read_text())
    check_arrays(result.metrics, runs.records(folder))
    assert result.metrics['k_s'].dtype == np.int64
    np.testing.assert_array_equal(result.metrics['round'], [1, 2, 3, 4])
    assert int(result.state.round) == 4


def test_the_final_state_has_the_final_accuracy(trained):
    """Evaluated by hand on scikit-learn's digits, as the command's test set is made of them."""
    _, result, _ = trained
    experiment = sfl.build(config()).experiment
    predicted = experiment.algorithm.predict(result.state, experiment.dataset.test_images)['teacher']
    right = np.asarray(predicted).argmax(axis=1) == experiment.dataset.test_labels
    assert result.summary['final_accuracy'] == np.count_nonzero(right) / len(right)


def test_events_tell_the_story(trained):
    folder, result, reported = trained
    assert [type(event).__name__ for event in reported] == [
        'Described',
        *('Compiling', 'Compiled') * 2,
        'Started',
        *('RoundDone', 'RoundDone', 'Snapshot') * 2,  # checkpoint_every=2
        'Finished',
    ]
    rounds = [event.records[0] for event in reported if isinstance(event, events.RoundDone)]
    assert rounds == runs.records(folder)
    assert reported[-1] == events.Finished(result.summary, folder, earlier=False)


def test_a_finished_run_gives_its_result_again(trained, capfd):
    folder, result, _ = trained
    before, reported = runs.files(folder), []
    again = sfl.train(config(), folder, reported.append)
    assert reported == [events.Finished(result.summary, folder, earlier=True)]
    assert again.summary == result.summary
    check_arrays(again.metrics, runs.records(folder))
    assert equal(again.state, result.state)
    assert runs.files(folder) == before
    assert capfd.readouterr() == ('', '')


def test_without_a_folder_the_same_numbers_and_no_file(trained, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    result = sfl.train(config(compilation_cache=False))
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ('', '')
    assert equal(result.state, trained[1].state)
    for name, values in trained[1].metrics.items():
        if name not in runs.TIMES:
            np.testing.assert_array_equal(result.metrics[name], values, err_msg=name)


@pytest.mark.slow
def test_a_resumed_run_has_the_arrays_of_all_rounds(trained, tmp_path):
    sfl.train(config(rounds=2), tmp_path / 'run')
    reported = []
    result = sfl.train(config(), tmp_path / 'run', reported.append)
    assert events.Resumed(2) in reported
    check_arrays(result.metrics, runs.records(tmp_path / 'run'))
    assert equal(result.state, trained[1].state)


@pytest.mark.slow
def test_several_seeds_have_a_leading_axis(trained, tmp_path):
    result = sfl.train(config(seeds=(3, 0)), tmp_path / 'run')
    assert [trial['seed'] for trial in result.summary['trials']] == [3, 0]
    for r, seed in enumerate((3, 0)):
        trial_metrics = {name: values[r] for name, values in result.metrics.items()}
        check_arrays(trial_metrics, runs.records(tmp_path / 'run' / f'seed_{seed}'))
    assert result.metrics['teacher_accuracy'].shape == (2, 4)
    assert len(result.state) == 2
    assert jax.tree.structure(result.state[1]) == jax.tree.structure(trained[1].state)
    again = sfl.train(config(seeds=(3, 0)), tmp_path / 'run')
    assert all(map(equal, again.state, result.state))
    np.testing.assert_array_equal(again.metrics['lr'], result.metrics['lr'])


@pytest.mark.slow
def test_a_request_to_stop_is_heard_after_a_round(tmp_path):
    request = interrupt.Request()

    class Block:
        def __enter__(self):
            return request

        def __exit__(self, *_):
            pass

    def listen(event):
        if isinstance(event, events.RoundDone):
            request.signum = 15

    with pytest.raises(interrupt.Stopped, match='stopped after round 1; nothing is saved without a folder'):
        sfl.train(config(), on_event=listen, interrupts=Block)
    request.signum = 0
    with pytest.raises(interrupt.Stopped, match='stopped after round 1; the same command resumes from there'):
        sfl.train(config(), tmp_path / 'run', listen, interrupts=Block)
    assert len(runs.records(tmp_path / 'run')) == 1


@pytest.mark.parametrize('seeds', [(), (0, 1)])
def test_everything_is_made_once(seeds, monkeypatch):
    """The model and the method in a run, the participation of the clients in a round of each seed."""
    counts = collections.Counter()

    def count(module, name):
        function = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, **kw: (counts.update([name]), function(*args, **kw))[1])

    for module, name in ((algorithms, 'build'), (experiment, 'build_model'), (inputs, 'participation')):
        count(module, name)
    sfl.train(config(algorithm='fedavg', rounds=3, seeds=seeds, eval_every=3))
    assert counts == {'build': 1, 'build_model': 1, 'participation': 3 * max(1, len(seeds))}


def test_a_folder_at_home(monkeypatch, tmp_path):
    """A shell leaves ~ as it is in --workdir=~/x."""
    monkeypatch.setenv('HOME', str(tmp_path))
    sfl.train(config(algorithm='supervised_only', rounds=1), '~/a')
    assert (tmp_path / 'a' / 'summary.json').exists()


@pytest.mark.slow
def test_diagnostics_without_a_folder_are_reported(tmp_path):
    reported = []
    sfl.train(config(rounds=2, diagnostics_every=1, algorithm='supervised_only'), None, reported.append)
    diagnosed = [event for event in reported if isinstance(event, events.Diagnosed)]
    assert [event.round for event in diagnosed] == [1, 2]
    assert diagnosed[0].arrays[0]['student_test'].sum() == 360  # test images of digits


def test_a_loss_that_is_not_finite_ends_a_run_without_a_folder():
    with pytest.raises(sfl.UserError, match=r'(?s)loss_.* is (nan|inf) in round \d: stopped\. A lower config\.lr'):
        sfl.train(config(lr=1e30, algorithm='supervised_only'))


def test_a_simulation_has_the_numbers_of_a_run(trained):
    _, result, _ = trained
    simulation = sfl.build(config())
    carry, metrics = simulation.round(simulation.init())
    for name, value in metrics.items():  # files, and arrays made of them, have the digits of a float32
        np.testing.assert_array_equal(np.float32(value), np.float32(result.metrics[name][0]), err_msg=name)
    assert simulation.evaluate(carry)['teacher'] == result.metrics['teacher_accuracy'][0]
