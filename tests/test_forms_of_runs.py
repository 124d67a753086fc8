"""A run keeps the form that it took, and says so."""

import json
import shutil

import numpy as np
import pytest

from semisfl_jax import compare, loop
from semisfl_jax import config as config_lib
from semisfl_jax import runs as runs_lib
from semisfl_jax.config import chosen
from semisfl_jax.errors import UserError
from semisfl_jax.studies import collect, report
from semisfl_jax.tune import store
from tests import runs
from tests.forms_of_runs import CHEAP, OTHER, USUAL, choice, resolved, taken_in

pytestmark = pytest.mark.usefixtures('choices_file')


def said(folder, **changes):
    """Runs in `folder`; what it says of its form."""
    lines = []

    def listen(event):
        if type(event).__name__ == 'Described':
            lines.extend(line for line in event.lines if line.startswith('form '))

    loop.train(runs.config(**CHEAP | changes), folder, listen)
    (line,) = lines
    return line


def test_a_run_keeps_its_form(tmp_path, choices_file):
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


def test_a_run_of_an_earlier_version_resumes(tmp_path, choices_file):
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


def test_seeds_of_other_forms_are_one_group_that_is_told(tmp_path, choices_file, capsys):
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
    found = collect.CellResult(dict(enumerate(members)), (0, 1), [], '', made)
    assert report._hardware(found) == 'cpu, a box; programs in different forms: patches (seed 1), winograd (seed 0)'
    assert report._hardware(found._replace(runs={0: members[0]})) == 'cpu, a box'
    assert compare.main(['compare', str(tmp_path / 'a'), str(tmp_path / 'b')]) == 0
    assert 'different forms of the programs, which round differently: patches (seed 1)' in capsys.readouterr().out
