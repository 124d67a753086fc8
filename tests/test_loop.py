"""Training from Python, arrays and states in place of files, events in place of prints; and runs that are opened
again."""

import contextlib
import json
import re
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import semisfl_jax as sfl
from semisfl_jax.core import machine
from semisfl_jax.core.errors import UserError
from semisfl_jax.training import events, interrupt, load
from tests import runs


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


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    """A run with a folder, its result, and the events that it reported."""
    folder, reported = tmp_path_factory.mktemp('trained') / 'run', []
    return folder, sfl.train(config(), folder, reported.append), reported


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
    check_arrays(again.metrics, runs.records(folder))
    assert equal(again.state, result.state)
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
    result = sfl.train(config(compilation_cache=False, diagnostics_every=2), None, reported.append)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ('', '')
    assert equal(result.state, trained[1].state)
    for name in result.metrics.keys() - set(runs.TIMES):
        np.testing.assert_array_equal(result.metrics[name], trained[1].metrics[name], err_msg=name)
    diagnosed = [event for event in reported if isinstance(event, events.Diagnosed)]
    assert [event.round for event in diagnosed] == [2, 4]
    assert diagnosed[0].arrays[0]['student_test'].sum() == 360  # test images of digits


def test_a_simulation_has_the_numbers_of_a_run(trained):
    """Round by round, K_s of which adapts."""
    _, result, _ = trained
    simulation = sfl.build(config())
    carry = simulation.init()
    for number in range(4):
        before = carry
        carry, metrics = simulation.round(carry)
        for name, value in metrics.items():  # files, and arrays made of them, have the digits of a float32
            np.testing.assert_array_equal(np.float32(value), np.float32(result.metrics[name][number]), err_msg=name)
        assert simulation.evaluate(carry)['teacher'] == result.metrics['teacher_accuracy'][number]
    again = simulation.round(before)[1]['loss_supervised']  # any round, once more
    assert np.float32(again) == np.float32(result.metrics['loss_supervised'][3])
    with pytest.raises(sfl.UserError, match=r'config\.seeds=\(0, 1\)'):
        sfl.build(sfl.get_config('digits', seeds=(0, 1)))


@pytest.mark.slow
def test_several_seeds_have_a_leading_axis_also_once_resumed(trained, tmp_path):
    sfl.train(config(seeds=(3, 0), rounds=2), tmp_path / 'run')
    reported = []
    result = sfl.train(config(seeds=(3, 0)), tmp_path / 'run', reported.append)
    assert events.Resumed(2) in reported
    assert [trial['seed'] for trial in result.summary['trials']] == [3, 0]
    for r, seed in enumerate((3, 0)):
        trial_metrics = {name: values[r] for name, values in result.metrics.items()}
        check_arrays(trial_metrics, runs.records(tmp_path / 'run' / f'seed_{seed}'))
    assert result.metrics['teacher_accuracy'].shape == (2, 4)
    assert jax.tree.structure(result.state[1]) == jax.tree.structure(trained[1].state)


def test_a_request_to_stop_is_heard_after_a_round(tmp_path):
    request = interrupt.Request()

    def listen(event):
        request.signum = 15 * isinstance(event, events.RoundDone)

    for folder in (None, tmp_path):
        with pytest.raises(interrupt.Stopped, match='round 1'):
            sfl.train(CHEAP, folder, listen, interrupts=lambda: contextlib.nullcontext(request))
        request.signum = 0
    assert len(runs.records(tmp_path)) == 1


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A tiny run of two rounds, saved after the second, in the home folder: a shell leaves ~ in --workdir=~/x."""
    home = tmp_path_factory.mktemp('reopened')
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv('HOME', str(home))
        sfl.train(CHEAP, '~/run')
    return home / 'run'


def test_the_last_round_is_evaluated_whatever_eval_every_is(tmp_path):
    for rounds, judged in ((3, [2, 3]), (4, [2, 3, 4])):  # the second call goes on
        result = sfl.train(config(algorithm='supervised_only', rounds=rounds, eval_every=2), tmp_path)
        scores = result.metrics['student_accuracy']
        assert [number for number, score in enumerate(scores, 1) if np.isfinite(score)] == judged
        assert result.summary['mean_of_last_10_evaluations'] == pytest.approx(np.nanmean(scores))


def copy(folder, target, old, new):
    """A copy of a run with another configuration."""
    shutil.copytree(folder, target)
    text = (target / 'config.json').read_text()
    assert text.count(old) == 1
    (target / 'config.json').write_text(text.replace(old, new))
    return target


def test_a_trained_model_classifies_as_it_was_judged(folder):
    before = runs.files(folder)
    trained = sfl.load_trained(folder)
    assert (trained.round, trained.headline) == (2, 'student')
    images, labels = trained.experiment.dataset.test_images, trained.experiment.dataset.test_labels
    logits = trained.predict(images)['student']
    assert logits.shape == (360, 10)
    accuracy = float(np.mean(logits.argmax(axis=1) == labels))
    first, last = runs.records(folder)
    assert accuracy == last['student_accuracy'] != first['student_accuracy']
    number, state = load.state(folder, trained.experiment)
    assert number == state.round == 2
    predicted = np.asarray(trained.experiment.algorithm.predict(state, images)['student']).argmax(axis=1)
    assert float(np.mean(predicted == labels)) == accuracy
    trained.experiment.config.unlock()
    trained.experiment.config.eval_batch_size = 7  # the last of three batches has three images that do not count
    np.testing.assert_allclose(trained.predict(images[:18])['student'], logits[:18], rtol=1e-4, atol=1e-5)
    initial = sfl.load_trained(str(folder), round_number=0)
    assert initial.round == 0
    assert not np.allclose(initial.predict(images[:2])['student'], logits[:2])
    assert runs.files(folder) == before
    for shape, kind in (((2, 8, 8, 1), 'float32'), ((2, 9, 8, 1), 'uint8'), ((0, 8, 8, 1), 'uint8')):
        with pytest.raises(UserError, match=re.escape(f'{list(shape)} of {kind}')):
            trained.predict(np.zeros(shape, kind))


def test_what_is_not_there_is_named_but_devices_which_are_not_needed(folder, tmp_path):
    trial = load.experiment(folder)
    for place, rounds in ((folder, {'round_number': 1}), (tmp_path, {})):
        with pytest.raises(UserError, match='round 1'):
            load.state(place, trial, **rounds)
    with pytest.raises(UserError, match=str(tmp_path)):
        sfl.load_trained(tmp_path)
    for name in ('supervised_only', 'small_cnn'):
        with pytest.raises(UserError, match=r'mine.*register'):
            load.experiment(copy(folder, tmp_path / name, f'"{name}"', '"mine"'))
    assert load.experiment(copy(folder, tmp_path / 'many', '"devices": 1', '"devices": 64')).mesh is None
    several = copy(folder, tmp_path / 'several', '"seeds": []', '"seeds": [0, 1]')
    for reader in (load.experiment, sfl.runs.read):
        with pytest.raises(UserError, match='seed_N'):
            reader(several)
    assert sfl.runs.trials(str(folder)) == [folder]
    assert sfl.runs.read(str(folder)).seed == 0
