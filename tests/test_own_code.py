"""A run knows the user's code that it was begun with, and says so when that has changed."""

import functools
import importlib.util
import json

import pytest

from semisfl_jax import config as config_lib
from semisfl_jax import data
from semisfl_jax.training import own_code
from tests import runs

RULE = """
from semisfl_jax.data import PARTITIONS


def alike(sizes, settings):
    return PARTITIONS['uniform'](sizes, settings)
"""
CHANGED = "the code of partition 'alike' (rule.py) has changed since the run in"


@pytest.fixture
def rule(tmp_path, monkeypatch):
    """A function that puts a text into rule.py and registers what it then has as a rule."""

    def register(text):
        path = tmp_path / 'rule.py'
        path.write_text(text)
        spec = importlib.util.spec_from_file_location('rule', path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        monkeypatch.setitem(data.PARTITIONS, 'alike', module.alike)

    return register


def digests(**changes):
    return own_code.of(config_lib.resolve(runs.config(**changes)))


def test_only_code_of_the_user_counts_and_not_its_comments(rule):
    assert digests() == {}
    rule(RULE)
    assert digests() == {}, 'not used'
    ((name, before),) = digests(federation__partition='alike').items()
    assert (name, before.place) == ("partition 'alike'", 'rule.py')
    rule(RULE + '# a comment\n')
    assert digests(federation__partition='alike') == {name: before}
    rule(RULE.replace("['uniform']", "['dirichlet']"))
    assert digests(federation__partition='alike')[name] != before


def test_what_has_no_source_is_left_out(monkeypatch):
    namespace = {}
    exec(RULE, namespace)  # as typed into a shell
    for thing in (namespace['alike'], functools.partial(namespace['alike']), len, 3):
        monkeypatch.setitem(data.PARTITIONS, 'alike', thing)
        assert digests(federation__partition='alike') == {}


def test_a_run_whose_code_has_changed_says_so(rule, tmp_path, capsys):
    folder, changes = tmp_path / 'run', {'algorithm': 'supervised_only', 'federation__partition': 'alike'}
    rule(RULE)
    assert runs.run(folder, rounds=1, **changes) == 0
    recorded = json.loads((folder / own_code.FILE).read_text())
    assert recorded == {name: code.digest for name, code in digests(**changes).items()}
    lines = runs.lines(folder)
    for text, told in ((RULE + '\n\n# the same\n', False), (RULE + '\nX = 1\n', True)):
        rule(text)
        capsys.readouterr()
        assert runs.run(folder, rounds=1, **changes) == 0
        assert (f'warning: {CHANGED} {folder} began' in capsys.readouterr().err) == told
    assert runs.run(folder, rounds=2, **changes) == 0
    assert CHANGED in capsys.readouterr().err
    assert runs.lines(folder)[:1] == lines
    assert json.loads((folder / own_code.FILE).read_text()) == recorded


def test_a_run_of_the_package_alone_has_no_such_file(tmp_path):
    own_code.write(tmp_path, config_lib.resolve(runs.config()))
    own_code.check(tmp_path, config_lib.resolve(runs.config()))
    assert list(tmp_path.iterdir()) == []
