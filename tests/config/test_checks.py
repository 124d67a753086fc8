"""What a configuration may not have is refused by key and value."""

import math

import hypothesis
import hypothesis.strategies as st
import pytest

import semisfl_jax as sfl
from configs import default
from semisfl_jax import algorithms, models
from semisfl_jax import config as config_lib
from semisfl_jax.base.errors import UserError
from semisfl_jax.config import checks, ignored_keys, keys
from semisfl_jax.core import hparams as hparams_lib
from semisfl_jax.models import zoo
from tests.helpers import needs
from tests.helpers.settings import changed, changes_of, from_json

FIELDS = keys.fields()


def check_refused(key, value, config):
    """In one line, with its key and its value."""
    with pytest.raises(UserError) as error:
        config_lib.check(config)
    message, inner = str(error.value), value if isinstance(value, list | tuple) else ()
    assert key in message
    assert any(shown in message for shown in (str(value), *map(repr, (value, *inner))))
    assert '\n' not in message


@st.composite
def wrong(draw):
    """A key and a value that it cannot have, whatever the others are; or a key that there is not."""
    key = draw(st.sampled_from(sorted(FIELDS)))
    field, rule = FIELDS[key], FIELDS[key].metadata
    if draw(st.booleans()):
        at = draw(st.integers(key.rfind('.') + 1, len(key) - 1))
        return f'{key[:at]}{draw(st.sampled_from("xqz"))}{key[at:]}', ''
    kind = keys.type_of(key, field)
    fits = {int: (int,), float: (int, float), bool: (bool,), str: (str,), tuple: (tuple, list)}[kind]
    values = [value for value in (None, b'bytes', True, 3, 2.5, 'text', [1]) if type(value) not in fits]
    if key == 'model.split_index':
        values.remove(None)
    elif kind in (int, float) and key != 'model.output_stride':
        edges = [rule['at_least'] - 1, rule['at_most'] + 1, rule['above'], rule['below'], 2.0**33, -(2.0**33)]
        values += [int(edge) for edge in edges if math.isfinite(edge)] if kind is int else [*edges[:4], math.nan, 1e300]
    if choices := field.metadata['choices']:
        values.append(draw(st.text('abc_0', min_size=1).filter(lambda name: name not in choices)))
    return key, draw(st.sampled_from(values))


@hypothesis.settings(deadline=None, max_examples=300)
@hypothesis.given(wrong())
def test_a_wrong_key_or_value_is_refused_by_name(case):
    key, value = case
    check_refused(key, value, from_json({key: value}))


ALONE = """
federation.num_active=31 lr_min=0.03 frequency.horizon=105 frequency.horizon=10 data.client_labels=4000 k_s=0
augment.scale_min=1.5 augment.scale_max=0.9 federation.mismatch=-0.5 cost.client_out=(2.0,1.0) cost.devices=[[1]]
data.tasks=[3] data.client_labels=-1 data.eval_split=validation seeds=[0,0] seeds=[1.5] seeds=[-1] seeds=[4294967296]
parallel.devices=11 parallel.num_processes=2 parallel.process_id=1 parallel.coordinator=localhost
parallel.coordinator=localhost:0 parallel.coordinator=localhost:65536
"""
TWO = 'parallel.num_processes=2 parallel.devices=0 parallel.coordinator=host:123'
SUPERVISED = 'algorithm=fedavg local.objective=supervised'
ALL_LABELS = f'{SUPERVISED} data.client_labels=-1'
SPLITFED = 'algorithm=splitfed k_s=0 data.client_labels=-1'
PERSONS = "algorithm=m_fed model.name=scene_net data.tasks=['persons'] k_s=0 data.client_labels=-1"
PERSONS += ' augment.supervised=weak'
BESIDE_OTHERS = [
    f'{TWO} parallel.process_id=2',
    f'algorithm=supervised_only {TWO}',
    f'seeds=(0,1) {TWO}',
    'seeds=(0,1,2,3,4,5) parallel.devices=4',
    'seeds=[1] seed=2',
    'data.client_labels=100 federation.mu=7 batch_size=60',
    SUPERVISED,  # without a label
    f'{SUPERVISED} data.client_labels=9 federation.mu=0',
    'algorithm=fedswitch data.client_labels=9 k_s=0',
    'algorithm=fedavg local.epochs=2 sampling=replicated',
    'algorithm=fedavg uda.temperature=0.4',
    'algorithm=fedavg local.objective=uda uda.tsa=log',
    'algorithm=fedmatch fedmatch.helpers=30',
    'algorithm=semifl local.epochs=2 semifl.max_passes=3',
    'algorithm=semifl data.residency=host semifl.batch_norm_data=all',
    'optimizer=adam nesterov=True',
    'algorithm=fedswitch setting=official',
    "algorithm=m_fed model.name=scene_net data.tasks=['depth'] k_s=0 data.client_labels=1",
    'failures.inside=0.6 failures.before=0.6',
    'failures.trace=nowhere.csv failures.inside=0.5',
    'algorithm=supervised_only failures.before=0.5',
    'data.num_unlabeled=29',
    'federation.max_images=19 federation.min_images=20',
    'data.client_labels=90 federation.mu=0 federation.mismatch=0.0',
    "algorithm=mfed_fl model.name=scene_net data.tasks=['depth'] k_s=0 data.client_labels=-1 augment.supervised=weak "
    'federation.labeled_partition=uniform',
    f'{PERSONS} augment.crop=0.25',
    f'{PERSONS} augment.crop=0.0 augment.rotate=10.0',
    f'{PERSONS} augment.crop=0.0 data.pad_to=64',
    'model.name=resnet9 cost.bill_model_size=paper',
    'algorithm=fedswitch_sl client_teacher_ema=True fedswitch.mode=student',
    'algorithm=fedswitch_sl setting=official',
    'algorithm=semisfl_prior setting=official',
    'algorithm=semisfl_prior prior.decay=1.5',
    f'{ALL_LABELS} pseudo_labels=true',
    f'{SPLITFED} k_s=20',
    f'{SPLITFED} data.client_labels=4001',
    f'{SPLITFED} splitfed.version=v2 parallel.devices=2',
    f'{SPLITFED} splitfed.version=v2 parallel.coordinator=host:1',
    f'{SPLITFED} splitfed.version=v2 federation.client_chunk=3',
]


@pytest.mark.parametrize('words', [*ALONE.split(), *BESIDE_OTHERS])
def test_what_other_keys_do_not_allow_is_refused_by_name(words):
    """The last one."""
    changes = changes_of(words)
    *_, (key, value) = changes.items()
    check_refused(key, value, from_json(changes))


def valid_other(key):
    """Another value of a key that is valid on its own."""
    value = config_lib.flatten(default.get_config())[key]
    if choices := FIELDS[key].metadata['choices']:
        resolved = hparams_lib.KEYS.get(key, FIELDS[key]).default  # of 'auto'
        return next(choice for choice in choices if choice not in (value, resolved))
    if isinstance(value, bool):
        return not value
    if isinstance(value, str | list):
        return 'encoder.npz' if isinstance(value, str) else ('semseg',)
    return (value / 2 or 0.5) if isinstance(value, float) else (value or 0) + 1


@pytest.mark.parametrize('algorithm', algorithms.METHODS)
def test_options_that_a_method_has_no_use_for_and_no_label_are_refused(algorithm):
    unused = [{key: valid_other(key)} for key in checks.unused(algorithms.get(algorithm))]
    no_label = {'k_s': 0, 'data.client_labels': 0}, {'k_s': 0, 'data.client_labels': 100, 'federation.mu': 0}
    for changes in (*unused, *no_label):
        config = default.get_config()
        config.update_from_flattened_dict(needs.changes(algorithm) | changes)
        with pytest.raises(UserError) as error:
            config_lib.check(config)
        message, key = str(error.value), next(iter(changes))
        assert '\n' not in message
        if changes in no_label:
            assert 'label' in message
        else:
            assert f'config.{key}={config_lib.flatten(config)[key]} ' in message
            assert algorithm in message


def test_a_model_that_a_user_registers_is_a_choice_and_may_have_batch_norm(monkeypatch):
    check_refused('model.name', 'own', changed(model__name='own'))
    small_cnn = zoo.ARCHITECTURES['small_cnn']
    monkeypatch.setitem(models.ARCHITECTURES, 'own', lambda *arguments: small_cnn(*arguments))
    changes = {'model.name': 'own', 'model.batch_norm_variance': 'unbiased'}
    assert list(ignored_keys.warnings(sfl.get_config('digits', changes), changes)) == []
