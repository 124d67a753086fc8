"""A record from outside of the package is a method, its options are keys; one that contradicts itself is refused."""

import dataclasses
import json
import re

import pytest
from ml_collections import ConfigDict

from semisfl_jax import algorithms
from semisfl_jax import config as config_lib
from semisfl_jax.base.errors import UserError
from tests.helpers import runs
from tests.helpers.one_pass import METHOD, one_pass

NEGATIVE = ('strength', float, algorithms.option(-1.0, 'a number', at_least=0))


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(algorithms.METHODS, 'one_pass', METHOD)


@dataclasses.dataclass(frozen=True)
class Options:
    share: float = algorithms.option(0.5, 'a share', at_least=0, below=1)
    kind: str = algorithms.option('a', 'a or b', choices=('a', 'b'))
    widths: tuple = algorithms.option((1, 2), 'several numbers')


def test_options_are_keys_with_their_defaults_and_reach_the_method(monkeypatch):
    monkeypatch.delitem(algorithms.METHODS, 'one_pass')
    algorithms.register(dataclasses.replace(METHOD, options=Options))
    config_lib.check(runs.config())  # at their defaults, runs of other methods are as before
    assert 'one_pass' not in config_lib.resolve(runs.config())
    config = runs.config(algorithm='one_pass', one_pass__share=0.25, one_pass__widths=(3, 4, 5))
    assert config.one_pass.to_dict() == {'share': 0.25, 'kind': 'a', 'widths': (3, 4, 5)}
    config = config_lib.resolve(config)
    read = ConfigDict(json.loads(json.dumps(config.to_dict())))  # as from config.json
    for each in (config, read):
        assert config_lib.hparams(each).options == Options(share=0.25, widths=(3, 4, 5))
    assert config_lib.differences(config, read) == []
    for changes, named in (
        ({'one_pass__share': 1.0}, 'one_pass.share=1.0 '),
        ({'one_pass__kind': 'c'}, "one_pass.kind='c' "),
        ({'algorithm': 'semisfl', 'one_pass__widths': (1,)}, 'one_pass.widths=[1] '),
        ({'queue': 'off'}, 'queue=off '),  # it does not use clustering
        ({'setting': 'official'}, 'one_pass'),
        ({'k_s': 0}, 'k_s=0 '),
    ):
        with pytest.raises(UserError, match=re.escape(named)):
            config_lib.check(runs.config(**({'algorithm': 'one_pass'} | changes)))


@pytest.mark.parametrize(
    ('name', 'objective'),
    [
        ('fixmatch', 'fixmatch'),
        ('UDA', 'uda'),
        ('fedavg:fixmatch', 'fixmatch'),
        ('fed-uda', 'uda'),
        ('meanteacher', 'mean_teacher'),
        ('pseudo-label', 'pseudo_label'),
    ],
)
def test_an_objective_as_a_method_leads_to_the_objective(name, objective):
    written = f'--config.algorithm=fedavg --config.local.objective={objective}'
    said = f"config.algorithm='{name}' is an objective of clients, not a method; write {written}$"
    with pytest.raises(UserError, match=said):
        config_lib.check(runs.config(algorithm=name))


@pytest.mark.parametrize(('name', 'meant'), [('fedmach', 'fedmatch'), ('supervised', 'supervised_only')])
def test_a_misspelled_method_is_not_taken_for_an_objective(name, meant):
    with pytest.raises(UserError, match=f"config.algorithm='{name}' is unknown; .* did you mean '{meant}'"):
        config_lib.check(runs.config(algorithm=name))


@pytest.mark.parametrize(
    ('changes', 'named'),
    [
        ({'name': 'semisfl'}, 'of that name'),
        ({'name': 'My method'}, "'My method'"),
        ({'uses': ('teachers',)}, "'teachers' .*'teacher'"),
        ({'reads': 'everything'}, "reads='everything'"),
        ({'server': 'never'}, "server='never'"),
        ({'k_s_rule': 'constant'}, "k_s_rule='constant'"),
        ({'build': None}, 'build is None'),
        ({'options': dict}, 'options'),
        ({'options': Options()}, 'options must be a class'),
        ({'options': Options, 'group': 'my.group'}, 'name and group'),
        ({'options': Options, 'group': 'fedmatch'}, r'config\.fedmatch'),
        ({'options': dataclasses.make_dataclass('Own', [NEGATIVE], frozen=True)}, r'config\.one_pass\.strength=-1\.0'),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(changes, named):
    with pytest.raises(ValueError, match=named):
        algorithms.register(dataclasses.replace(METHOD, **changes))
    with pytest.raises(ValueError, match='function'):
        algorithms.register(one_pass)
