"""Callbacks of the package: when they stop a run, what they keep, and what they show."""

import io
import sys
import threading
import time
import types

import jax
import numpy as np
import pytest

import semisfl_jax as sfl
from semisfl_jax import tasks
from semisfl_jax.base.errors import UserError
from semisfl_jax.training import callbacks, checkpoint
from tests.helpers import runs

VALIDATION = {'data.num_validation': 100, 'data.eval_split': 'validation'}
CHEAP = {**runs.TINY, **VALIDATION, 'algorithm': 'supervised_only', 'rounds': 6}
ACCURACY = sfl.events.Described([], None, 9, tasks.Headline('student', tasks.ACCURACY, 'validation'))
RMSE = ACCURACY._replace(headline=tasks.Headline('depth', tasks.RMSE, 'validation'))


def done(**scores):
    """A round of which seeds have had these scores so far; None: not evaluated."""
    lines = {
        int(seed[1:]): [{'round': n} if x is None else {'round': n, 'student_accuracy': x} for n, x in enumerate(xs, 1)]
        for seed, xs in scores.items()
    }
    return sfl.events.RoundDone(max(map(len, lines.values())), lines, None, None)


def test_early_stopping_counts_evaluations_since_the_first_best():
    stop = callbacks.early_stopping(2)
    assert not stop(ACCURACY)
    assert not stop(done(s0=[None]))
    assert not stop(done(s0=[0.5, None, 0.4], s1=[0.5, None, 0.4]))
    answer = stop(done(s0=[0.5, None, 0.4, 0.5], s1=[0.5, None, 0.4, 0.6]))  # as good is no better
    assert answer == {0: 'no better student validation accuracy in 2 evaluations'}
    resumed = sfl.events.Resumed(4, done(s0=[0.5, None, 0.4, 0.5]).lines)
    assert stop(resumed) == answer


def test_an_error_is_better_if_it_is_lower():
    stop = callbacks.early_stopping(1)
    stop(RMSE)
    lines = [{'round': 1, 'depth_rmse': 2.0}, {'round': 2, 'depth_rmse': 1.0}]
    assert not stop(sfl.events.RoundDone(2, {0: lines}, None, None))
    assert stop(sfl.events.RoundDone(3, {0: [*lines, {'round': 3, 'depth_rmse': 1.5}]}, None, None)).keys() == {0}


@pytest.mark.parametrize('make', [lambda key='': callbacks.early_stopping(1, key), callbacks.keep_best])
def test_what_cannot_be_chosen_by_is_refused(make):
    with pytest.raises(UserError, match=r"test images.* data\.eval_split='validation'"):
        make()(ACCURACY._replace(headline=tasks.Headline('student', tasks.ACCURACY)))
    with pytest.raises(UserError, match="'loss_supervised' is not a score"):
        make('loss_supervised')(ACCURACY)
    call = make('teacher_accuracy')
    call(ACCURACY._replace(folder='folder'))
    with pytest.raises(UserError, match='this run has no teacher_accuracy; it has student_accuracy'):
        call(done(s0=[0.5]))


def test_the_best_needs_a_folder():
    with pytest.raises(UserError, match='needs a folder'):
        callbacks.keep_best()(ACCURACY)


def test_best_checkpoint_and_early_stop_of_a_run(tmp_path):
    """The best is the checkpoint whose model has the best validation accuracy: counted anew from its predictions."""
    config = sfl.get_config('digits', CHEAP | {'lr': 0.5, 'rounds': 9, 'checkpoint_every': 9, 'checkpoints_kept': 1})
    result = sfl.train(config, tmp_path, [sfl.callbacks.keep_best(), sfl.callbacks.early_stopping(2)])
    scores = [line['student_accuracy'] for line in runs.records(tmp_path)]
    best = int(np.argmax(scores)) + 1  # the first
    assert len(scores) == best + 2 < 9
    assert result.summary['stopped_early'] == 'no better student validation accuracy in 2 evaluations'
    assert checkpoint.rounds_saved(tmp_path / 'best') == [best]
    assert checkpoint.rounds_saved(tmp_path / 'checkpoints') == [best + 2]
    trained = sfl.load_trained(tmp_path, 'best')
    assert trained.round == best
    data = trained.experiment.dataset
    predicted = trained.predict(data.test_images)['student'].argmax(axis=-1)
    assert np.mean(predicted == data.test_labels) == pytest.approx(scores[best - 1], abs=1e-6)
    assert sfl.export(tmp_path, tmp_path / 'out', round_number='best')['round'] == best
    assert runs.command('verify', tmp_path) == 0


def test_what_came_after_the_last_checkpoint_is_no_longer_the_best(tmp_path):
    """A run that is killed after its best round, which the next one reaches again."""

    def keep_all(event):
        if isinstance(event, sfl.events.RoundDone):
            event.save(0, callbacks.BEST)
            if event.round == 3:
                raise RuntimeError('killed')

    config = sfl.get_config('digits', CHEAP)
    for _ in range(2):
        with pytest.raises(RuntimeError, match='killed'):
            sfl.train(config, tmp_path, [keep_all])
        assert checkpoint.rounds_saved(tmp_path / 'best') == [3]


def test_a_profile_of_some_rounds(tmp_path, monkeypatch):
    traced, started = [], []
    monkeypatch.setattr(jax.profiler, 'start_trace', started.append)
    monkeypatch.setattr(jax.profiler, 'stop_trace', lambda: traced.append(started.pop()))
    rounds = [sfl.events.Started(0), *(sfl.events.RoundDone(n, {}, None, None) for n in (1, 2, 3, 4, 5))]
    for events, ends in (([*rounds], 4), ([*rounds[:3], sfl.events.Ended()], 3)):
        call, traced[:] = callbacks.profiler(tmp_path, rounds=2), []
        for index, event in enumerate(events):
            call(event)
            assert bool(started) == (1 <= index < ends - 1 + (ends == 3)), (index, ends)
        assert not started


def test_a_profile_is_written(tmp_path):
    sfl.train(sfl.get_config('digits', CHEAP), None, [sfl.callbacks.profiler(tmp_path, rounds=1)])
    (trace,) = tmp_path.rglob('*.xplane.pb')
    assert trace.stat().st_size


def record(number, **scores):
    losses = {'loss_supervised': 1.25, 'loss_consistency': None, 'loss_clustering': None}
    return {'round': number, 'k_s': 20, **losses, **scores}


def test_a_log_file_gets_a_line_per_evaluation_and_no_control_characters(capsys):
    progress = callbacks.Progress(0, 4, tasks.Headline('teacher', tasks.ACCURACY))
    progress.update(1, {0: [record(1)]})
    assert capsys.readouterr() == ('', '')
    progress.update(2, {0: [record(1), record(2, teacher_accuracy=0.25)], 1: [record(2, teacher_accuracy=0.75)]})
    progress.bar.close()
    printed = capsys.readouterr()
    assert printed.out.startswith('round 2/4')
    assert 'teacher accuracy 50.00%' in printed.out
    assert '\r' not in printed.out
    assert not printed.err


@pytest.mark.parametrize('where', ['terminal', 'notebook', 'file'])
def test_a_bar_where_someone_may_look(monkeypatch, where):
    stderr = io.StringIO()
    stderr.isatty = lambda: where == 'terminal'
    monkeypatch.setattr(sys, 'stderr', stderr)
    if where == 'notebook':
        cell = types.SimpleNamespace(get_ipython=lambda: types.SimpleNamespace(kernel=None))
        monkeypatch.setitem(sys.modules, 'IPython', cell)
    sfl.train(sfl.get_config('digits', CHEAP | {'rounds': 1}), bar=False)
    assert not stderr.getvalue()
    sfl.train(sfl.get_config('digits', CHEAP | {'rounds': 1}))
    assert ('0/1' in stderr.getvalue()) == (where != 'file')


def ticking():
    """Threads of clocks."""
    return [thread for thread in threading.enumerate() if '_tick' in thread.name]


@pytest.mark.parametrize('last', [sfl.events.Compiled('round', 12.34, cached=False), sfl.events.Ended()])
def test_a_clock_runs_while_a_program_compiles_in_a_terminal(monkeypatch, capsys, last):
    stderr = io.StringIO()
    stderr.isatty = lambda: True
    monkeypatch.setattr(sys, 'stderr', stderr)
    monkeypatch.setattr(callbacks, '_SECONDS_BETWEEN_TICKS', 0.01)
    seconds = iter([100.0, *(100.0 + 7 * tick for tick in range(1000))])
    monkeypatch.setattr(callbacks, 'time', types.SimpleNamespace(monotonic=lambda: next(seconds)))
    both = callbacks.bar(), callbacks.console()
    for call in both:
        call(sfl.events.Compiling('round'))
    assert len(ticking()) == 1
    while '21 s' not in stderr.getvalue():
        time.sleep(0.01)
    for call in both:
        call(last)
    assert ticking() == []
    texts = [text.strip() for text in stderr.getvalue().split('\r')]
    shown = [text for text in texts if text]
    assert shown[:4] == [f'preparing the round … {tick} s' for tick in (0, 7, 14, 21)]
    assert texts[-2:] == ['', '']  # cleared
    ended = isinstance(last, sfl.events.Ended)
    assert capsys.readouterr().out == ('' if ended else 'preparing the round … 12.3 s\n')


def test_elsewhere_what_compiles_is_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, 'stderr', io.StringIO())
    for call in (callbacks.bar(), callbacks.console()):
        call(sfl.events.Compiling('round'))
    assert ticking() == []
    assert capsys.readouterr().out == 'preparing the round … '
    callbacks.console()(sfl.events.Compiled('round', 0.21, cached=True))
    assert capsys.readouterr().out == '0.2 s (compiled program loaded from cache)\n'
