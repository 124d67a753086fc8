"""Names of keys that were probably meant, and the help on every key."""

import pytest

from configs import default
from configs.studies import scales
from semisfl_jax import algorithms
from semisfl_jax import config as config_lib
from semisfl_jax.algorithms import registry
from semisfl_jax.base.errors import UserError, did_you_mean
from semisfl_jax.config import keys
from tests.helpers.settings import method_reading

FIELDS = keys.fields()
MEANT = {
    'algoritm': 'algorithm',
    'federation.num_client': 'federation.num_clients',
    'fedswich.mode': 'fedswitch.mode',
    'learning_rate': 'lr',
    'train.epochs': 'local.epochs',
    **dict.fromkeys(('name', 'rate', 'xyz', 'model.width', 'devices_per_client'), ''),  # it is not clear
}


def test_an_unknown_key_names_what_was_probably_meant():
    """In programs; tests/config/test_command_line.py has the command."""
    assert {word: keys.meant(word, FIELDS) for word in MEANT} == MEANT
    assert did_you_mean('fedavg', ('two_level', 'off')) == ''
    with pytest.raises(UserError, match=r'none / uniform: config\.queu is not .*config\.queue\b'):
        scales.cell('smoke', 'none', 'uniform', 'cifar10', {'queu': 'off'})
    config = default.get_config()
    del config.k_u
    with pytest.raises(UserError, match=r'config\.k_u\b'):
        config_lib.check(config)


def test_the_help_on_a_key_says_what_the_table_does():
    for key, field in FIELDS.items():
        text, rule = ' '.join(keys.help_of(key).split()), field.metadata
        assert text.startswith(f'config.{key} = {field.default!r} ')
        words = field.metadata['help'], keys.values(field), *rule['idle'], rule['part']
        assert all(' '.join(word.split()) in text for word in words)
        assert len(field.metadata['help']) > 0
        if rule['feature'] or key.split('.')[0] in registry.option_groups():
            assert method_reading(key).name in text
    text = keys.help_of('config.federation')
    assert all(f'config.{key} = ' in text for key in FIELDS if key.startswith('federation.'))
    with pytest.raises(UserError, match=r'config\.federation\.alfa .*config\.federation\.alpha'):
        keys.help_of('federation.alfa')


def test_the_help_shows_the_values_of_files_beside_the_default():
    files = {'a.py': {'lr': 0.5, 'model.split_index': None}, 'b': {'lr': 0.25}}
    lines = [keys.help_of(key, files).splitlines()[0] for key in ('lr', 'model.split_index', 'seed')]
    assert lines[0] == 'config.lr = 0.02 (in a.py: 0.5) (in b: 0.25)'
    assert lines[1:] == ['config.model.split_index = None (in a.py: None)', 'config.seed = 0']


def test_the_help_explains_metrics():
    assert keys.help_of('mask_rate') == (
        'metric mask_rate\n  share of unlabeled images whose pseudo-label reaches the threshold\n'
        '  In methods with pseudo-labels.\n'
    )
    assert keys.help_of('k_s').startswith('config.k_s = 100\n')
    assert 'metric k_s\n  supervised iterations of the server in this round\n' in keys.help_of('k_s')
    with pytest.raises(UserError, match='neither a key nor a metric; did you mean teacher_accuracy'):
        keys.help_of('teacher_acuracy')


def test_the_help_says_what_a_key_means_for_each_method(monkeypatch):
    """Papers of FedAvg, FedProx and SplitFed weight clients by their images; SplitFed's server has none of its own."""
    names = 'fedavg', 'fedprox', 'fedmatch', 'semisfl', 'splitfed'
    monkeypatch.setattr(algorithms, 'METHODS', {name: algorithms.METHODS[name] for name in names})
    said = {key: keys.readers(key, FIELDS[key]) for key in ('k_s', 'k_s_rule', 'local.weighting', 'lr')}
    assert said == {
        'k_s': '0: refused in semisfl; required in splitfed; allowed elsewhere.',
        'k_s_rule': 'auto: paper in semisfl; fixed elsewhere.',
        'local.weighting': 'Read by fedavg, fedprox, fedmatch, splitfed. auto: uniform in fedmatch; samples elsewhere.',
        'lr': '',
    }
