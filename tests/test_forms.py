"""The form of a run's programs: by the table of devices, or as it was measured and stored."""

import json

import pytest

from semisfl_jax import config as config_lib
from semisfl_jax import forms, machine
from semisfl_jax.config import chosen, tuned
from semisfl_jax.errors import UserError
from semisfl_jax.forms import Form
from semisfl_jax.machine import Device
from semisfl_jax.preview import __main__ as preview
from semisfl_jax.preview import targets
from semisfl_jax.tune import store
from semisfl_jax.tune.__main__ import main
from tests import runs
from tests.forms_of_runs import OTHER, USUAL, choice, resolved
from tests.one_line import assert_one_line

pytestmark = pytest.mark.usefixtures('choices_file')

WORDS = runs.words_of('tune')
CPUINFO = """\
processor\t: 0
vendor_id\t: {maker}
model name\t: A  Processor 3000
flags\t\t: fpu sse2 {flags}

processor\t: 1
vendor_id\t: Another
"""


# --- devices and the table


@pytest.mark.parametrize(
    ('maker', 'flags', 'vectors', 'measured'),
    [
        ('AuthenticAMD', 'avx2 avx512f avx512dq', 'avx512', True),
        ('GenuineIntel', 'avx2 avx512f', 'avx512', True),
        ('AuthenticAMD', 'avx avx2', 'avx2', True),
        ('GenuineIntel', 'avx avx2', 'avx2', False),
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


def test_a_preview_takes_the_form_of_its_target(monkeypatch, choices_file):
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


def test_a_choice_holds_for_what_was_measured(choices_file):
    config = resolved()
    device = machine.device()
    assert tuned.find(config, device) is None
    assert not choices_file.parent.exists()
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
        ('TIMES', 'not written by tune'),
    ],
)
def test_a_broken_store_is_one_line(choices_file, text, word, capsys, caplog):
    if text == 'TIMES':  # a choice whose times are a list
        store.add(choice(resolved(), OTHER))
        content = json.loads(choices_file.read_text())
        content['choices'][0]['milliseconds'] = [1]
        text = json.dumps(content)
    choices_file.parent.mkdir(exist_ok=True)
    choices_file.write_text(text)
    for words in (['tune', '--list'], WORDS):
        assert main(words) == 2
        assert_one_line(capsys.readouterr().err, [str(choices_file), word, '--forget'])
    assert chosen.for_this_machine(resolved()).model.convolution == 'winograd'
    (warning,) = [record.getMessage() for record in caplog.records]
    assert all(part in warning for part in (str(choices_file), word, 'tune --forget', 'table'))
    assert main(['tune', '--forget']) == 0
    assert not choices_file.exists()


def test_a_form_that_does_not_exist_is_a_broken_store(choices_file):
    store.add(choice(resolved(), OTHER))
    choices_file.write_text(choices_file.read_text().replace('"patches"', '"scattered"'))
    with pytest.raises(UserError, match=r"not written by tune.*'scattered'"):
        tuned.read()
