"""The form of a run's programs: by table or measurement, kept by a run, and measured by python -m semisfl_jax.tune."""

import json
import shutil

import numpy as np
import pytest

from semisfl_jax import compare, forms, loop, machine
from semisfl_jax import config as config_lib
from semisfl_jax import runs as runs_lib
from semisfl_jax.config import chosen, tuned
from semisfl_jax.errors import UserError
from semisfl_jax.forms import Form
from semisfl_jax.machine import Device
from semisfl_jax.preview import __main__ as preview
from semisfl_jax.preview import targets
from semisfl_jax.studies import collect, report
from semisfl_jax.tune import measure, store
from semisfl_jax.tune.__main__ import candidates, main
from semisfl_jax.tune.measure import Clock
from tests import runs
from tests.test_cli import assert_one_line

CHEAP = {'algorithm': 'supervised_only', 'rounds': 2, 'lr_rounds': 2, 'checkpoint_every': 1}
USUAL, OTHER = Form('loop', 'winograd'), Form('loop', 'patches')
WORDS = ['tune', runs.DIGITS, *(f'--config.{key}={value}' for key, value in runs.TINY.items())]
CPUINFO = """\
processor\t: 0
vendor_id\t: {maker}
model name\t: A  Processor 3000
flags\t\t: fpu sse2 {flags}

processor\t: 1
vendor_id\t: Another
"""


@pytest.fixture(autouse=True)
def file(monkeypatch, tmp_path):
    """Where choices are stored in a test."""
    path = tmp_path / 'cache' / tuned.NAME
    monkeypatch.setattr(tuned, 'file', lambda: path)
    return path


def choice(config, form, **changes):
    entry = tuned.Choice(*tuned.place(config, machine.device()), form, {str(form): 1.5}, '2026-11-23')
    return entry._replace(**changes)


def resolved(**changes):
    return config_lib.resolve(runs.config(**changes))


def config_of(folder):
    return config_lib.flatten(json.loads((folder / 'config.json').read_text()))


def taken_in(folder):
    """The form in config.json, and which keys the machine chose."""
    config = config_of(folder)
    return [config[key] for key in forms.KEYS], config['machine_keys']


# --- devices and the table


@pytest.mark.parametrize(
    ('maker', 'flags', 'vectors', 'measured'),
    [
        ('AuthenticAMD', 'avx2 avx512f avx512dq', 'avx512', True),
        ('GenuineIntel', 'avx2 avx512f', 'avx512', True),
        ('AuthenticAMD', 'avx avx2', 'avx2', False),
        ('Unheard', '', '', False),
    ],
)
def test_the_processor_as_linux_describes_it(monkeypatch, tmp_path, maker, flags, vectors, measured):
    (tmp_path / 'cpuinfo').write_text(CPUINFO.format(maker=maker, flags=flags))
    monkeypatch.setattr(machine, 'PROC', tmp_path)
    device = machine.device()
    assert device[:4] == ('cpu', 'A Processor 3000', maker, vectors)
    assert device.cores >= 1
    form, source = forms.of_device(device)
    assert form == USUAL
    assert bool(source) == measured


def test_a_processor_that_no_file_describes(monkeypatch, tmp_path):
    monkeypatch.setattr(machine, 'PROC', tmp_path)
    assert machine.device().maker == machine.python_platform.machine()


@pytest.mark.parametrize(
    ('device', 'form'),
    [
        (Device('gpu', 'NVIDIA H200'), Form('vmap', 'native')),
        (Device('tpu', 'TPU v5 lite'), Form('vmap', 'native')),
        (Device('cpu', 'Apple', 'arm64'), USUAL),
    ],
)
def test_devices_without_a_line_take_the_form_of_their_platform(device, form):
    assert forms.of_device(device) == (form, '')


def test_the_most_special_line_counts(monkeypatch):
    line = forms.Row('gpu', 'NVIDIA H200', '', '', Form('loop', 'native'), '1 ms')
    monkeypatch.setattr(forms, 'TABLE', (line, *forms.TABLE))
    assert forms.of_device(Device('gpu', 'NVIDIA H200 SXM'))[0] == Form('loop', 'native')
    assert forms.of_device(Device('gpu', 'NVIDIA H100'))[0] == Form('vmap', 'native')
    with machine.programs_for('gpu', 'NVIDIA H200'):
        filled = chosen.for_this_machine(resolved())
    assert (filled.federation.client_map, filled.model.convolution) == ('loop', 'native')


def test_a_preview_takes_the_form_of_its_target(monkeypatch, file):
    monkeypatch.setattr(targets, '_installed', lambda module: True)
    store.add(choice(resolved(), OTHER))  # of this machine
    asked = preview.request(['preview', *WORDS[1:], '--target=h200'])
    assert (asked.config.federation.client_map, asked.config.model.convolution) == ('vmap', 'native')
    assert 'not measured on NVIDIA H200' in asked.form
    here = preview.request(['preview', *WORDS[1:], '--target=cpu'])
    assert here.config.model.convolution == 'patches'


# --- what a configuration is filled with


def test_a_filled_configuration_is_the_same_experiment():
    config = resolved()
    filled = chosen.for_this_machine(config)
    assert [config_lib.flatten(filled)[key] for key in forms.KEYS] == list(USUAL)
    assert filled.machine_keys == tuple(forms.KEYS)
    assert config_lib.identity_hash(filled) == config_lib.identity_hash(config)
    assert not config_lib.differences(filled, config)
    assert chosen.for_this_machine(filled) == filled
    config_lib.check(filled)
    assert chosen.unfilled(filled).lock() == config
    given = resolved(model__convolution='direct', federation__client_map='loop')
    assert config_lib.identity_hash(given) != config_lib.identity_hash(config)
    assert chosen.for_this_machine(given) == given


@pytest.mark.parametrize(
    ('changes', 'left'),
    [
        ({'federation__client_chunk': 2}, ['auto', 'winograd']),
        ({'algorithm': 'supervised_only'}, ['auto', 'winograd']),
        ({'federation__client_map': 'vmap'}, ['vmap', 'winograd']),
        ({'model__convolution': 'native', 'federation__client_map': 'vmap'}, ['vmap', 'native']),
        (
            {'algorithm': 'splitfed', 'splitfed__version': 'v2', 'k_s': 0, 'data__client_labels': -1},
            ['auto', 'winograd'],
        ),
    ],
)
def test_what_programs_do_not_read_is_left_alone(changes, left):
    filled = chosen.for_this_machine(resolved(**changes))
    assert [config_lib.flatten(filled)[key] for key in forms.KEYS] == left
    config_lib.check(filled)


def test_the_machine_keys_of_a_user_are_refused():
    for keys in (('lr',), ('model.convolution',)):
        with pytest.raises(UserError, match=f"machine_keys holds '{keys[0]}'.*leave it out"):
            config_lib.check(runs.config(machine_keys=keys))


# --- the store


def test_a_choice_holds_for_what_was_measured(file):
    config = resolved()
    device = machine.device()
    assert tuned.find(config, device) is None
    assert not file.parent.exists()
    store.add(choice(config, OTHER))
    store.add(choice(resolved(batch_size=8), USUAL))
    assert tuned.find(config, device) == choice(config, OTHER)
    assert chosen.for_this_machine(config).model.convolution == 'patches'
    for other in ({'algorithm': 'fedavg'}, {'federation__num_active': 4}, {'precision': 'float32'}):
        assert tuned.find(resolved(**other), device) is None
    assert tuned.find(config, device._replace(cores=device.cores + 1)) is None
    for same in ({'lr': 0.5}, {'seed': 7}, {'rounds': 9}):
        assert tuned.find(resolved(**same), device).form == OTHER
    store.add(choice(config, USUAL))
    assert [entry.form for entry in tuned.read()] == [USUAL, USUAL]
    store.add(choice(config, OTHER, jax='0.0.1'))
    assert tuned.find(config, device).form == USUAL
    assert store.forget(lambda entry: entry.jax == '0.0.1') == 1
    assert len(tuned.read()) == 2


def test_devices_share_clients_but_not_those_of_seeds():
    assert tuned.settings(resolved(federation__num_active=5, parallel__devices=2))['clients'] == 3
    seeds = resolved(federation__num_active=5, seeds=(0, 1), parallel__devices=2)
    assert tuned.settings(seeds) == tuned.settings(config_lib.trials(seeds)[1])
    assert tuned.settings(seeds)['clients'] == 5


@pytest.mark.parametrize(
    ('text', 'word'),
    [
        ('{', 'is not JSON'),
        ('[]', 'a list'),
        ('{"format": 2, "choices": []}', 'not of format 1'),
        ('{"format": 1, "choices": [{}]}', 'not written by tune'),
        ('{"format": 1, "choices": 5}', 'not written by tune'),
    ],
)
def test_a_broken_store_is_one_line(file, text, word, capsys, caplog):
    file.parent.mkdir()
    file.write_text(text)
    for words in (['tune', '--list'], WORDS):
        assert main(words) == 2
        assert_one_line(capsys.readouterr().err, [str(file), word, '--forget'])
    assert chosen.for_this_machine(resolved()).model.convolution == 'winograd'
    (warning,) = [record.getMessage() for record in caplog.records]
    assert all(part in warning for part in (str(file), word, 'tune --forget', 'table'))
    assert main(['tune', '--forget']) == 0
    assert not file.exists()


def test_a_form_that_does_not_exist_is_a_broken_store(file):
    store.add(choice(resolved(), OTHER))
    file.write_text(file.read_text().replace('"patches"', '"scattered"'))
    with pytest.raises(UserError, match=r"not written by tune.*'scattered'"):
        tuned.read()


# --- runs


def said(folder, **changes):
    """Runs in `folder`; what it says of its form."""
    lines = []

    def listen(event):
        if type(event).__name__ == 'Described':
            lines.extend(line for line in event.lines if line.startswith('form '))

    loop.train(runs.config(**CHEAP | changes), folder, listen)
    (line,) = lines
    return line


def test_a_run_keeps_its_form(tmp_path, file):
    folder, whole = tmp_path / 'run', tmp_path / 'whole'
    config = resolved(**CHEAP)
    assert 'convolution winograd (' in said(whole)
    assert taken_in(whole) == (['auto', 'winograd'], ['model.convolution'])
    said(folder, rounds=1)
    store.add(choice(config, OTHER))

    line = said(folder)
    assert 'convolution winograd (as this run began; a new one would take patches: measured by tune' in line
    assert taken_in(folder) == taken_in(whole)
    assert runs.lines(folder) == runs.lines(whole)

    other = tmp_path / 'other'
    assert said(other) == 'form       convolution patches (measured by tune on 2026-11-23)'
    assert taken_in(other)[0] == ['auto', 'patches']
    store.clear()
    assert 'convolution patches (as this run began; a new one would take' in said(other, rounds=3)
    np.testing.assert_allclose(
        [record['loss_supervised'] for record in runs.records(other)[:2]],
        [record['loss_supervised'] for record in runs.records(whole)],
        rtol=1e-3,
    )
    for asked in ('direct', 'native'):
        with pytest.raises(UserError, match=rf'model.convolution: patches -> {asked}\); choose another --workdir'):
            loop.train(runs.config(**CHEAP, model__convolution=asked), other)


def test_a_run_of_an_earlier_version_resumes(tmp_path, file):
    """Its config.json has 'auto' and no machine_keys; whether the user now asks for the same form or for none."""
    folder, again = tmp_path / 'old', tmp_path / 'again'
    said(folder, rounds=1)
    content = json.loads((folder / 'config.json').read_text())
    content['model']['convolution'] = 'auto'
    del content['machine_keys']
    (folder / 'config.json').write_text(json.dumps(content))
    shutil.copytree(folder, again)
    store.add(choice(resolved(**CHEAP), OTHER))
    assert 'convolution direct (as this run began' in said(folder)
    assert taken_in(folder) == (['auto', 'direct'], ['model.convolution'])
    said(again, model__convolution='direct')
    assert runs.lines(again) == runs.lines(folder)
    assert len(runs.lines(folder)) == 2
    with pytest.raises(UserError, match=r'model.convolution: direct -> patches\)'):
        loop.train(runs.config(**CHEAP, model__convolution='patches'), folder)


def test_a_form_that_no_run_wrote_is_another_experiment(tmp_path):
    config = resolved()
    written = {**config_lib.flatten(config), 'model.convolution': 5, 'machine_keys': 7}
    taken = chosen.of_run(config, written)
    assert list(taken.values.values()) == list(USUAL)
    assert config_lib.differences(chosen.fill(config, taken), written) == ['model.convolution: 5 -> winograd']


def test_seeds_of_other_forms_are_one_group_that_is_told(tmp_path, file, capsys):
    said(tmp_path / 'a', seed=0)
    store.add(choice(resolved(**CHEAP), OTHER))
    said(tmp_path / 'b', seed=1)
    members = [runs_lib.read(tmp_path / name) for name in 'ab']
    assert [run.form for run in members] == ['winograd', 'patches']
    groups, unknown = runs_lib.group(members)
    assert [sorted(group) for group in groups.values()] == [[0, 1]]
    assert not unknown
    assert runs_lib.different_forms(members) == 'patches (seed 1), winograd (seed 0)'
    assert runs_lib.different_forms(members[:1]) == ''
    made = [{'device': 'cpu', 'machine': 'a box', 'commit': 'c'}]
    found = collect.Found(dict(enumerate(members)), (0, 1), [], '', made)
    assert report._hardware(found) == 'cpu, a box; programs in different forms: patches (seed 1), winograd (seed 0)'
    assert report._hardware(found._replace(runs={0: members[0]})) == 'cpu, a box'
    assert compare.main(['compare', str(tmp_path / 'a'), str(tmp_path / 'b')]) == 0
    assert 'different forms of the programs, which round differently: patches (seed 1)' in capsys.readouterr().out


# --- the measurement


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


def test_the_command(file, capsys):
    words = [*WORDS, '--config.model.convolution=direct', '--seconds=5']
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert 'a short round of K_s' in printed
    assert str(file) in printed
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
        (['--seconds=soon'], ["'soon'", 'number of seconds']),
        (['--seconds=-1'], ["'-1'"]),
        (['--list'], ['--list shows all', '--config']),
        (['--list=1'], ['--list']),
        (['--config.model.convolution=native', '--config.federation.client_map=vmap'], ['nothing to choose', "'auto'"]),
        (['--config.model.convolution=fft'], ["'fft'"]),
        (['--config.parallel.coordinator=a:1'], ["'a:1'"]),
        (['--config.data.partition_file=x.npz'], ["'x.npz'"]),
    ],
)
def test_mistakes(added, words, file, capsys):
    assert main([*WORDS, *added]) == 2
    assert_one_line(capsys.readouterr().err, words)
    assert not file.exists()
