"""What cells of a study hold when files of their runs are whole, damaged or gone."""

import json
import shutil

import pytest

from semisfl_jax.base.errors import UserError
from semisfl_jax.lab.studies import engine, plan, results
from tests.helpers import studies_toy


@pytest.fixture(scope='module')
def whole(tmp_path_factory):
    """The folder below which the toy study was run. No test writes to it."""
    folder = tmp_path_factory.mktemp('whole')
    engine.run(studies_toy.study(), {}, str(folder / 'root'), studies_toy.launcher(folder))
    return folder / 'root'


@pytest.fixture
def made(whole, tmp_path):
    """The plan of the study, and a copy of that folder."""
    return plan.make(studies_toy.study(), {}), shutil.copytree(whole, tmp_path / 'root')


def numbers(folder):
    """The lines of cells.csv by table, row and column."""
    return {tuple(line.split(',')[:3]): line for line in (folder / 'cells.csv').read_text().splitlines()[1:]}


def edit_metrics(home):
    file = home / 'seed_1/metrics.jsonl'
    file.write_text(file.read_text().replace('0.92', '0.99'))


DAMAGES = {
    'metrics.jsonl was modified': edit_metrics,
    'has no run of seed 1; restore it': lambda home: (home / 'seed_1').rename(home.parents[1] / 'elsewhere'),
    'config.json': lambda home: (home / 'seed_2/config.json').write_text('{'),
    'provenance.json was modified': lambda home: (home / results.PROVENANCE).write_text('{}'),
}


@pytest.mark.parametrize('message', DAMAGES)
def test_a_damaged_run_costs_its_own_cells_and_is_named_there(made, message, tmp_path):
    definition, root = made
    folder = root / definition.name
    before, damaged = numbers(folder), definition.cells['Accuracies', 'SemiSFL', 'Dir(1)'][0]
    DAMAGES[message](root / plan.RUNS / damaged.name)
    with pytest.raises(UserError, match=rf'1 of 4 runs cannot be read; damaged: .*{message}'):
        engine.run(studies_toy.study(), {}, str(root), studies_toy.launcher(tmp_path))
    after = numbers(folder)
    lost = {(table, 'SemiSFL', 'Dir(1)') for table in ('Accuracies', 'Minutes', 'Gigabytes')}  # which read that run
    assert {place for place in before if after[place] != before[place]} == lost
    text = (folder / 'report.md').read_text()
    assert '| SemiSFL | damaged: ' in text
    assert message in text
    assert '3 of 6 cells are complete.' in text
    assert sorted(studies_toy.started(root)) == sorted(job.name for job in definition.jobs)  # nothing ran again


def test_jobs_are_read_once(made, monkeypatch):
    definition, root = made
    first = results.read_jobs(definition, root, {})
    monkeypatch.setattr(results, '_read', None)
    assert results.read_jobs(definition, root, {}, first) == first


def test_a_summary_that_is_damaged_is_of_no_finished_run(made):
    definition, root = made
    file = root / plan.RUNS / definition.jobs[0].name / 'summary.json'
    file.write_text(json.dumps(json.loads(file.read_text()) | {'rounds': 9}))
    assert results.read_jobs(definition, root, {})[definition.jobs[0].name].missing == results.NOT_RUN
