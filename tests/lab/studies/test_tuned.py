"""Studies with the settings of a sweep: which cells have them, what the report says, and what is refused."""

import dataclasses
import json

import pytest

from semisfl_jax.base import file_io
from semisfl_jax.base.errors import UserError
from semisfl_jax.lab.studies import engine, spec, tuned
from semisfl_jax.lab.studies.tuned import Tuned, TunedMethod
from tests.helpers import studies_toy


def found(algorithm='semisfl', title='SemiSFL', **more):
    settings = {'lr': 0.05, 'lr_min': 0.0125, 'threshold': 0.8}
    untuned = {'lr': 0.02, 'lr_min': 0.005, 'threshold': 0.95}
    states = {'complete': 5, 'pruned': 1, 'diverged': 0}
    fields = (title, {'algorithm': algorithm}, settings, 4, 0.9, untuned, 0.8, 6, states, {'lr': '0.002 to 0.2'}, 'a-1')
    return TunedMethod(*fields)._replace(**more)


def result(*methods, seeds=(100, 101)):
    about = {'data.name': 'digits', 'rounds': 10}
    return Tuned('toy', 'cpu', 'accuracy', True, seeds, about, ('abc',), '5.0.0', methods or (found(),))


def write(folder, value):
    folder.mkdir(exist_ok=True)
    file_io.write_json(folder / tuned.NAME, tuned.as_json(value))
    return folder / tuned.NAME


def test_cells_of_a_tuned_method_have_its_settings_and_no_others():
    untuned, study = studies_toy.study(), tuned.apply(studies_toy.study(), result(), 'tuned.json')
    assert study.name.startswith('toy-tuned-')
    for before, cell in zip(untuned.cells(), study.cells(), strict=True):
        if cell.row == 'SemiSFL':
            assert (cell.config.lr, cell.config.lr_min, cell.config.threshold) == (0.05, 0.0125, 0.8)
            assert cell.changes == {**before.changes, 'lr': 0.05, 'lr_min': 0.0125, 'threshold': 0.8}
        else:
            assert cell.config == before.config
    table = tuned.apply(untuned, result(), 'tuned.json', beside=True).tables[0]
    assert table.rows == ['SemiSFL', 'SemiSFL, untuned', 'FedSwitch']
    for column in table.columns:
        assert table.at('SemiSFL, untuned', column).config == untuned.tables[0].at('SemiSFL', column).config


def test_what_a_study_varies_is_left_as_it_is():
    study = studies_toy.study()
    cells = [studies_toy.cell('semisfl', alpha, threshold=t) for alpha, t in ((1.0, 0.9), (0.5, 0.95))]
    study = dataclasses.replace(study, tables=(dataclasses.replace(study.tables[0], cells=tuple(cells)),))
    changed = tuned.apply(study, result(), 'tuned.json')
    assert [(cell.config.lr, cell.config.threshold) for cell in changed.cells()] == [(0.05, 0.9), (0.05, 0.95)]
    assert any('threshold as in the study' in note for note in changed.notes)
    cells = [studies_toy.cell('semisfl', alpha, lr=lr) for alpha, lr in ((1.0, 0.1), (0.5, 0.02))]
    study = dataclasses.replace(study, tables=(dataclasses.replace(study.tables[0], cells=tuple(cells)),))
    of_cells = [(cell.config.lr, cell.config.lr_min) for cell in tuned.apply(study, result(), 'tuned.json').cells()]
    assert of_cells == [(0.1, 0.005), (0.02, 0.005)]  # lr_min follows lr


def test_a_part_of_a_study_leaves_what_its_whole_table_varies_and_no_other_table():
    varied = [studies_toy.cell('semisfl', alpha, threshold=t) for alpha, t in ((1.0, 0.9), (0.5, 0.95))]
    tables = [spec.Table('varied', tuple(varied)), spec.Table('other', (studies_toy.cell('semisfl', 1.0),))]
    whole = dataclasses.replace(studies_toy.study(), tables=tuple(tables))
    changed = tuned.apply(whole.part((), ['Dir(1)']), result(), 'tuned.json', whole=whole)
    assert [(cell.config.lr, cell.config.threshold) for cell in changed.cells()] == [(0.05, 0.9), (0.05, 0.8)]


def test_of_two_forms_of_a_method_the_one_with_more_fixed_keys():
    cell = studies_toy.cell('semisfl', 1.0)
    closer = found(title='SemiSFL, skewed', fixed={'algorithm': 'semisfl', 'federation.alpha': 1.0})
    assert tuned.method_of(cell, [found(), closer]) is closer
    assert tuned.method_of(studies_toy.cell('semisfl', 0.5), [closer]) is None
    cells = (cell, studies_toy.cell('semisfl', 0.5, threshold=0.7))
    study = dataclasses.replace(studies_toy.study(), tables=(spec.Table('two forms', cells),))
    study = tuned.apply(study, result(found(), closer), 'tuned.json')
    assert [cell.config.threshold for cell in study.cells()] == [0.8, 0.8]  # neither form varies it
    assert tuned.method_of(studies_toy.cell('fedswitch', 1.0), [found(), closer]) is None
    assert tuned.method_of(studies_toy.cell('semisfl', 1.0, setting='official'), [found()]) is None


def run(tmp_path, given):
    return engine.run(studies_toy.study(), given, str(tmp_path / 'root'), studies_toy.launcher(tmp_path))


@pytest.mark.slow
def test_the_study_runs_with_them_and_its_report_says_so(tmp_path):
    given = {'study_tuned': str(write(tmp_path / 'sweep', result())), 'study_untuned': True}
    text = (run(tmp_path, given) / 'report.md').read_text()
    assert 'TUNED: methods have the settings that the sweep toy:cpu found' in text
    assert 'validation accuracy 90.00 %, untuned 80.00 % (trial 4)' in text
    assert 'NOT TUNED: FedSwitch' in text
    assert '| SemiSFL, untuned | ' in text
    assert '--config.lr=0.05 --config.lr_min=0.0125' in text


@pytest.mark.parametrize(
    ('value', 'given', 'named'),
    [
        (result(seeds=(1, 100)), {}, r'seed 1,.*config\.seeds'),
        (result(found('fedavg', 'FedAvg')), {}, 'FedAvg'),
        (result(), {'lr': 0.1}, r'config\.lr '),
        ('config.json', {}, r'config\.study_tuned=.*tuned\.json'),
        ('tuned.json', {}, 'not written by a sweep'),
    ],
)
def test_what_does_not_fit(tmp_path, value, given, named):
    folder = tmp_path / 'sweep'
    folder.mkdir()
    if isinstance(value, str):
        file_io.write_json(folder / value, file_io.seal({}))
    else:
        write(folder, value)
    with pytest.raises(UserError, match=named):
        run(tmp_path, {'study_tuned': str(folder), **given})


def test_is_read_as_it_was_written_and_not_if_it_was_edited(tmp_path):
    file = write(tmp_path, result())
    assert tuned.read(file) == tuned.read(tmp_path) == result()
    content = json.loads(file.read_text())
    content['methods'][0]['settings']['lr'] = 0.1
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match=str(file)):
        tuned.read(file)
    with pytest.raises(UserError, match='study_tuned'):
        run(tmp_path, {'study_untuned': True})
