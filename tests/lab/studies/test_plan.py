"""Commands of jobs, and every mistake in a study before its first run."""

import dataclasses
import shlex

import pytest

from semisfl_jax.base.errors import UserError
from semisfl_jax.config import command_line
from semisfl_jax.lab.studies import engine, plan, spec
from semisfl_jax.lab.studies.spec import Measure
from tests.helpers import runs, studies_toy, sweeps_toy

PATHS = {
    '--config=/home/me/my.py': '--config=my.py',
    "--config.model.weights='/home/me/my runs/a'": "--config.model.weights='my runs/a'",
    '/a/b/c.jsonl, line 3; see ~/d/e (/f/g)': 'c.jsonl, line 3; see e (g)',
    'https://a.org/b/c and d/e, 1 / 2, /x': 'https://a.org/b/c and d/e, 1 / 2, /x',
}


@pytest.mark.parametrize('text', PATHS)
def test_of_paths_the_last_part_is_shown(text):
    assert plan.without_folders(text) == PATHS[text]


def test_a_command_can_be_given_to_a_shell():
    changes = {'data.image_folder': '/a b/$c', 'data.tasks': (), 'model.name': 'cnn', 'data.client_labels': 3}
    one = plan.Job('x', 'digits', changes | {'seed': 1}, (1,), 5)
    options = ['--config.data.client_labels=3', '--config.data.image_folder=/a b/$c', '--config.data.tasks=()']
    words = ['python', 'launch.py', '--config=configs/digits.py', *options, '--config.model.name=cnn']
    assert shlex.split(one.command()) == [*words, '--config.seed=1']
    loop = plan.command([one, one._replace(changes=changes | {'seed': 2}, seeds=(2,))])
    assert shlex.split(loop) == ['for', 'seed', 'in', '1', '2;', 'do', *words, '--config.seed=$seed;', 'done']
    several = plan.Job('x', 'digits', {'data.tasks': ('semseg', 'edges')}, (1,), 5)
    assert several.command().endswith(''' "--config.data.tasks='semseg','edges'"''')
    scenes = f'--config={runs.ROOT}/configs/digit_scenes.py'
    assert command_line.parse(['launch.py', scenes, '--config.data.tasks=()']).config.data.tasks == ()


ACCURACIES = studies_toy.study().tables[0]


GAIN = dataclasses.replace(ACCURACIES.cells[0], measure=Measure('delta_m', reference='FedSGD'))


UNKNOWN = dataclasses.replace(ACCURACIES.cells[0], measure=Measure('acuracy'))


@pytest.mark.parametrize(
    ('changes', 'named'),
    [
        ({'figures': ('values', 'foo')}, "Accuracies: .*'foo'"),
        ({'reference': 'SemiFSL'}, "'SemiFSL' .*'SemiSFL'"),
        ({'cells': 2 * ACCURACIES.cells}, r'SemiSFL / Dir\(1\)'),
        ({'cells': (UNKNOWN,)}, "'acuracy'.*'accuracy'"),
        ({'cells': (GAIN,), 'reference': ''}, "'FedSGD'"),
        ({'title': 'Minutes'}, 'Minutes'),
        ({'cells': (dataclasses.replace(ACCURACIES.cells[0], measure='accuracy'),)}, "measures 'accuracy'"),
        (
            {'cells': (dataclasses.replace(ACCURACIES.cells[0], base='mnist'),)},
            r"'mnist' and its changes, has config\.",
        ),
    ],
)
def test_a_mistake_in_a_study_is_found_before_its_first_run(tmp_path, changes, named):
    """In its first table."""
    whole = studies_toy.study()
    study = dataclasses.replace(whole, tables=(dataclasses.replace(ACCURACIES, **changes), *whole.tables[1:]))
    with pytest.raises(UserError, match=named):
        engine.run(study, {'study_columns': ('Dir(1)',)}, str(tmp_path / 'root'), studies_toy.launcher(tmp_path))
    assert not (tmp_path / 'root').exists()


TITLES = {
    '': 'single line',
    ' ': 'single line',
    'a\nb': 'single line',
    'a\0b': 'single line',
    '\ud800': 'single line',
    7: 'single line',
    'x' * 151: '151 bytes',
    '百' * 51: '153 bytes',
    r'$\bad{$': 'formula',
    r'$\alpha$ and $\frac{1}$': 'formula',
}


@pytest.mark.parametrize('title', TITLES)
@pytest.mark.parametrize('place', ['study', 'table', 'row', 'column', 'sweep'])
def test_a_title_that_cannot_be_drawn_is_refused_before_the_first_run(tmp_path, place, title):
    whole, first = studies_toy.study(), ACCURACIES.cells[0]
    cells = ACCURACIES.cells[1:] if place in ('row', 'column') else ACCURACIES.cells
    cells = (*cells, dataclasses.replace(first, **{place: title})) if place in ('row', 'column') else cells
    changes = {'cells': cells, 'reference': ''} | ({'title': title} if place == 'table' else {})
    definition = dataclasses.replace(whole, tables=(dataclasses.replace(ACCURACIES, **changes),))
    if place == 'study':
        definition = dataclasses.replace(whole, title=title)
    elif place == 'sweep':
        definition = sweeps_toy.sweep()
        entries = (definition.entries[0]._replace(title=title), definition.entries[1])
        definition = dataclasses.replace(definition, entries=entries)
    with pytest.raises(UserError, match=TITLES[title]):
        engine.run(definition, {}, str(tmp_path / 'root'))
    assert not (tmp_path / 'root').exists()


@pytest.mark.parametrize('name', ['../up', 'a/b', '/tmp/x', '..', '.hidden', '', 'a\0b', 'a b', 'x' * 101, 'ä', None])
@pytest.mark.parametrize('key', ['name', 'scale'])
@pytest.mark.parametrize('make', [studies_toy.study, sweeps_toy.sweep])
def test_a_name_that_is_none_of_a_folder_is_refused(tmp_path, make, key, name):
    if (make, key) == (sweeps_toy.sweep, 'scale') and not name:
        return  # a sweep may have none
    with pytest.raises(UserError, match='cannot be the name of a folder'):
        engine.run(dataclasses.replace(make(), **{key: name}), {}, str(tmp_path / 'root'))
    assert not any(tmp_path.iterdir())


def test_formulas_and_dollars_can_be_drawn():
    cell = dataclasses.replace(ACCURACIES.cells[0], row=r'$\alpha = \frac{1}{2}$', column='5 $')
    plan.make(dataclasses.replace(studies_toy.study(), tables=(spec.Table(r'\$5 and \$6', (cell,)),)), {})
