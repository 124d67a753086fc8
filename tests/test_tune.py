"""python -m semisfl_jax.tune: what it measures, in which turns, what it chooses, and what it prints."""

import numpy as np
import pytest

from semisfl_jax import machine
from semisfl_jax.config import chosen, tuned
from semisfl_jax.errors import UserError
from semisfl_jax.forms import Form
from semisfl_jax.tune import measure
from semisfl_jax.tune.__main__ import candidates, main
from semisfl_jax.tune.measure import Clock
from tests import runs
from tests.forms_of_runs import OTHER, USUAL, resolved
from tests.one_line import assert_one_line

pytestmark = pytest.mark.usefixtures('choices_file')

WORDS = runs.words_of('tune')


def test_the_fastest_form_is_chosen_unless_it_is_noise():
    fast, slow = [1.0, 2.0, 1.0], [1.2, 2.4, 1.2]
    assert measure.best({USUAL: slow, OTHER: fast}, USUAL) == OTHER
    assert measure.best({USUAL: [1.04, 2.08, 1.04], OTHER: fast}, USUAL) == USUAL
    assert measure.best({USUAL: [1.0, 9.0, 1.02], OTHER: [1.0, 0.9, 1.0]}, USUAL) == USUAL  # one bad turn
    assert measure.best({OTHER: fast}, USUAL) == OTHER


def test_slow_convolutions_are_not_measured_in_rounds():
    pairs = [Form('loop', 'direct'), Form('loop', 'native'), Form('loop', 'patches'), Form('vmap', 'direct')]
    worth, slow = measure.promising(pairs, {'direct': 1.0, 'patches': 0.5, 'native': 17.0})
    assert worth == [pairs[0], pairs[3], pairs[2]]
    assert list(slow) == [pairs[1]]
    assert '34 times as long with native' in slow[pairs[1]]


def test_turns_alternate_and_slow_forms_leave(monkeypatch):
    a, b, c, d = (Form('loop', name) for name in 'abcd')
    seconds, calls = {a: 1.0, b: 3.1, c: 2.0}, []

    def build(form):
        if form == d:
            raise UserError('too large')
        return lambda: (calls.append(form.convolution), seconds[form])[1]

    times, left_out = measure.measure([a, b, c, d], build, Clock(60.0, np.inf), lambda line: None)
    assert times == {a: [1.0] * 15, c: [2.0] * 15}
    assert '3.1 times as long' in left_out[b]
    assert left_out[d] == 'cannot be computed: too large'
    assert ''.join(calls) == 'abc' + 15 * 'ac'
    times, left_out = measure.measure([a, c, b], build, Clock(60.0, -np.inf), lambda line: None)  # too late already
    assert times == {a: [1.0] * 3, c: [2.0] * 3}
    assert '60 s are running out' in left_out[b]
    with pytest.raises(UserError, match=r'no form.*too large'):
        measure.measure([d], build, Clock(60.0, np.inf), lambda line: None)


def test_candidates():
    pairs = candidates(resolved())
    assert pairs[0] == USUAL
    assert len(set(pairs)) == 8  # two maps of clients, four convolutions
    assert {form.client_map for form in candidates(resolved(federation__client_chunk=2))} == {'auto'}
    assert candidates(resolved(model__convolution='native'))[0] == Form('loop', 'native')


def test_the_command(choices_file, capsys):
    words = [*WORDS, '--config.model.convolution=direct', '--seconds=5']
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert 'a short round of K_s' in printed
    assert str(choices_file) in printed
    for form in ('loop  ', 'vmap  '):
        assert f'\n{form}' in printed
    (stored,) = tuned.read()
    config = resolved(model__convolution='direct')
    assert stored.place == tuned.place(config, machine.device())
    assert str(stored.form) in stored.milliseconds.keys() <= {'loop and direct', 'vmap and direct'}
    assert chosen.for_this_machine(config).federation.client_map == stored.form.client_map
    assert main(['tune', '--list']) == 0
    assert 'this device\n  algorithm=semisfl, model=small_cnn' in capsys.readouterr().out
    assert main([*words[:-1], '--forget']) == 0
    assert tuned.read() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    'changes',
    [
        {'algorithm': 'supervised_only'},
        {'algorithm': 'fedavg', 'local.epochs': 1, 'sampling': 'epochs'},
        {'algorithm': 'semifl', 'seeds': '0,1'},
        {'algorithm': 'fedmatch', 'federation.client_chunk': 2},
        {'algorithm': 'splitfed', 'splitfed.version': 'v2', 'data.client_labels': -1, 'k_s': 0},
    ],
    ids=lambda changes: changes['algorithm'],
)
def test_methods(changes, capsys):
    assert main([*WORDS, *(f'--config.{key}={value}' for key, value in changes.items()), '--seconds=1']) == 0
    assert 'chosen' in capsys.readouterr().out


@pytest.mark.parametrize(
    ('added', 'words'),
    [
        (['--workdir=x'], ["--workdir='x'"]),
        (['--seconds=soon'], ['--seconds=soon: must be a number of seconds']),
        (['--seconds=-1'], ['--seconds=-1', 'above 0']),
        (['--seconds', 'nan'], ['--seconds=nan', 'above 0']),
        (['--seconds'], ['Missing value for flag --seconds']),
        (['--list', '--forget'], ['two commands']),
        (['--list'], ['--list shows all', '--config']),
        (['--list=2'], ['--list=2: must be given without a value']),
        (['--config.model.convolution=native', '--config.federation.client_map=vmap'], ['nothing to choose', "'auto'"]),
        (['--config.model.convolution=fft'], ["'fft'"]),
        (['--config.parallel.coordinator=a:1'], ["'a:1'"]),
        (['--config.data.partition_file=x.npz'], ["'x.npz'"]),
    ],
)
def test_mistakes(added, words, choices_file, capsys):
    assert main([*WORDS, *added]) == 2
    assert_one_line(capsys.readouterr().err, words)
    assert not choices_file.exists()
