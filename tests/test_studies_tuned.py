"""Studies with the settings of a sweep: which cells have them, what the report says, and what is refused."""

import dataclasses
import json

import pytest

from semisfl_jax.core import file_io
from semisfl_jax.core.errors import UserError
from semisfl_jax.studies import engine, plan, tuned
from semisfl_jax.studies.tuned import Tuned, TunedMethod
from tests import studies_toy


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


def test_is_read_as_it_was_written(tmp_path):
    file = write(tmp_path, result())
    assert tuned.read(file) == tuned.read(tmp_path) == result()


def test_cells_of_a_tuned_method_have_its_settings_and_no_others():
    study = tuned.apply(studies_toy.study(), result(), 'tuned.json')
    assert study.name.startswith('toy-tuned-')
    for before, cell in zip(studies_toy.study().cells(), study.cells(), strict=True):
        if cell.row == 'SemiSFL':
            assert (cell.config.lr, cell.config.lr_min, cell.config.threshold) == (0.05, 0.0125, 0.8)
            assert cell.changes == {**before.changes, 'lr': 0.05, 'lr_min': 0.0125, 'threshold': 0.8}
        else:
            assert cell.config == before.config
    notes = ' '.join(study.notes)
    assert 'the sweep toy:cpu found, by validation accuracy with seeds 100, 101 and 6 trials for each method' in notes
    assert (
        'SemiSFL: lr=0.05, lr_min=0.0125, threshold=0.8; validation accuracy 90.00 %, untuned 80.00 % (trial 4)'
        in notes
    )
    assert 'NOT TUNED: FedSwitch' in notes


def test_untuned_rows_stand_beside_the_tuned_ones():
    study = tuned.apply(studies_toy.study(), result(), 'tuned.json', beside=True)
    table = study.tables[0]
    assert table.rows == ['SemiSFL', 'SemiSFL, untuned', 'FedSwitch']
    for column in table.columns:
        assert table.at('SemiSFL, untuned', column).config == studies_toy.study().tables[0].at('SemiSFL', column).config
    assert len(plan.jobs(study)) == len(plan.jobs(studies_toy.study())) + 2


def test_what_a_study_varies_is_left_as_it_is():
    study = studies_toy.study()
    cells = [studies_toy.cell('semisfl', alpha, threshold=t) for alpha, t in ((1.0, 0.9), (0.5, 0.95))]
    study = dataclasses.replace(study, tables=(dataclasses.replace(study.tables[0], cells=tuple(cells)),))
    changed = tuned.apply(study, result(), 'tuned.json')
    assert [(cell.config.lr, cell.config.threshold) for cell in changed.cells()] == [(0.05, 0.9), (0.05, 0.95)]
    assert 'SemiSFL: threshold as in the study, which varies it.' in changed.notes


def test_of_two_forms_of_a_method_the_one_with_more_fixed_keys():
    cell = studies_toy.cell('semisfl', 1.0)
    closer = found(title='SemiSFL, skewed', fixed={'algorithm': 'semisfl', 'federation.alpha': 1.0})
    assert tuned.of_cell(cell, [found(), closer]) is closer
    assert tuned.of_cell(studies_toy.cell('semisfl', 0.5), [closer]) is None
    assert tuned.of_cell(studies_toy.cell('fedswitch', 1.0), [found(), closer]) is None


def run(tmp_path, given):
    return engine.run(studies_toy.study(), given, str(tmp_path / 'root'), studies_toy.launcher(tmp_path))


def test_the_study_runs_with_them_and_its_report_says_so(tmp_path):
    given = {'study_tuned': str(write(tmp_path / 'sweep', result())), 'study_untuned': True}
    text = (run(tmp_path, given) / 'report.md').read_text()
    assert 'TUNED: methods have the settings that the sweep toy:cpu found' in text
    assert '| SemiSFL, untuned | ' in text
    assert '--config.lr=0.05 --config.lr_min=0.0125' in text


@pytest.mark.parametrize(
    ('value', 'given', 'why'),
    [
        (result(seeds=(1, 100)), {}, 'were tuned on seed 1, which toy.* has, too; use other --config.seeds'),
        (result(found('fedavg', 'FedAvg')), {}, 'has settings of FedAvg, but no cell of toy is of these'),
        (result(), {'lr': 0.1}, 'config.lr is not the same in all runs'),
        (
            'config.json',
            {},
            r'config\.study_tuned=.*: there is no .*; give the path of a tuned.json, or the folder of a sweep',
        ),
        (tuned.NAME, {}, r'tuned\.json is not JSON'),
    ],
)
def test_what_does_not_fit_is_one_line(tmp_path, value, given, why):
    folder = tmp_path / 'sweep'
    folder.mkdir()
    if isinstance(value, str):
        (folder / value).touch()
    else:
        write(folder, value)
    with pytest.raises(UserError, match=why) as caught:
        run(tmp_path, {'study_tuned': str(folder), **given})
    assert '\n' not in str(caught.value)


def test_a_file_that_was_edited_is_refused(tmp_path):
    file = write(tmp_path, result())
    content = json.loads(file.read_text())
    content['methods'][0]['settings']['lr'] = 0.1
    file.write_text(json.dumps(content))
    with pytest.raises(UserError, match='was modified after the sweep wrote it'):
        tuned.read(file)
    with pytest.raises(UserError, match=r'give the path of a tuned\.json'):
        tuned.read(tmp_path / 'none.json')
    with pytest.raises(UserError, match=r'write --config\.study_tuned=FILE'):
        run(tmp_path, {'study_untuned': True})
