"""Figures of runs: what is read from their folders, and the command that draws all of it."""

import sys

import jax
import numpy as np
import pytest

from semisfl_jax import algorithms, data
from semisfl_jax import runs as runs_lib
from semisfl_jax.core.errors import UserError
from semisfl_jax.plots import __main__ as command
from semisfl_jax.plots import collect, draw, style
from semisfl_jax.training import diagnostics
from tests import runs, toy
from tests.one_line import assert_one_line
from tests.plots_toy import GIB, made_up


def test_a_curve_is_the_mean_over_seeds_with_its_error():
    members = {0: made_up(0, [0.5, 0.7]), 1: made_up(1, [0.6, 0.9], up=(GIB, 4 * GIB, 5 * GIB))}
    curve = collect.curve('semisfl', members, 'score')
    assert curve.label == 'SemiSFL'
    assert curve.x.tolist() == [2, 3]
    np.testing.assert_allclose(curve.mean, [0.55, 0.8])
    # standard deviation of two values: their difference over sqrt(2); over sqrt(2) again
    np.testing.assert_allclose(curve.error, [0.05, 0.1])
    traffic = collect.curve('semisfl', members, 'score', 'gigabytes')
    np.testing.assert_allclose(traffic.x, [5, 7])  # means of 2 + 2 and 4 + 2, of 3 + 3 and 5 + 3
    np.testing.assert_allclose(collect.curve('semisfl', members, 'score', 'minutes').x, [1, 1.5])
    assert np.isnan(collect.curve('semisfl', {0: members[0]}, 'score').error).all()


def test_what_is_missing_is_named():
    plain = made_up(0, [0.5, 0.7])
    bare = plain._replace(records=[{'round': 1, 'teacher_accuracy': 0.5}])
    with pytest.raises(UserError, match=r'run0/metrics\.jsonl.*bytes_up.*bytes_down'):
        collect.curve('semisfl', {0: bare}, 'score', 'gigabytes')
    with pytest.raises(UserError, match='mask_rate'):
        collect.curves({'semisfl': {0: plain}}, 'mask_rate')
    groups = {'a': {0: plain}, 'b': {0: bare}}
    assert [curve.label for curve in collect.curves(groups, 'score', 'minutes')] == ['a']
    assert list(collect.each(groups, {'a': 'loss_consistency', 'b': 'loss_fix'})) == ['a']


def test_labels_and_file_names():
    assert style.group_title('algorithm=supervised_only') == 'Supervised-only'
    assert style.group_title('algorithm=semisfl, k_s=20') == 'SemiSFL, k_s=20'
    assert style.group_title('federation.alpha=0.1') == 'federation.alpha=0.1'
    assert draw.slug('algorithm=semisfl, data.name=a/b') == 'semisfl_data.name-a-b'


# --- a real run


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A tiny run with diagnostics after rounds 2 and 4."""
    made = tmp_path_factory.mktemp('drawn') / 'run'
    assert runs.run(made, diagnostics_every=2) == 0
    return made


@pytest.mark.slow
def test_the_command_draws_all_that_is_there(folder, tmp_path, capsys):
    before = runs.files(folder)
    capsys.readouterr()
    assert command.main(['plots', str(folder), f'--out={tmp_path}', '--format=png,svg']) == 0
    printed = capsys.readouterr().out
    dense = {'scores', 'predictions'}
    expected = {f'{name}.{kind}' for name in set(draw.FIGURES) - dense for kind in ('png', 'svg')}
    assert {path.name for path in tmp_path.iterdir()} == expected
    assert all(str(tmp_path / name) in printed for name in expected)
    assert runs.files(folder) == before, 'drawing leaves a run as it is'


@pytest.mark.slow
def test_the_figures_show_the_run(folder):
    """From files to Axes; what each plot makes of its data is tested by itself."""
    groups = runs_lib.group([runs_lib.read(folder)])
    records, diagnosis = runs.records(folder), diagnostics.load(folder, 4)
    with style.context():
        wanted = ('accuracy_rounds', 'k_s', 'partition', 'clients', 'mask_history', 'queue', 'gap')
        figures = dict(draw.figures(groups, wanted))
    (line,) = figures['accuracy_rounds'].axes[0].lines
    np.testing.assert_allclose(line.get_ydata(), [100 * record['teacher_accuracy'] for record in records])
    (line,) = figures['k_s'].axes[0].lines
    assert line.get_ydata().tolist() == [record['k_s'] for record in records]

    split = data.load_partition(folder / 'partition.npz')
    labels = data.load(runs.config().data).train_labels
    held = {(n, k) for n, rows in enumerate(split.client_index) for k in labels[rows].tolist()}
    assert {tuple(map(int, point)) for point in figures['partition'].axes[0].collections[0].get_offsets()} == held

    confident = diagnosis['teacher_confident'].sum(axis=(1, 2)) / diagnosis['unlabeled'].sum(axis=1)
    np.testing.assert_allclose(figures['clients'].axes[0].lines[0].get_ydata(), 100 * confident)
    edges = figures['mask_history'].axes[0].collections[0].get_coordinates()
    assert edges[0, :, 0].tolist() == [1, 3, 5]
    titles = [ax.get_title() for ax in figures['queue'].axes]
    assert titles == ['Supervised level: 16 of 16 slots filled', 'Unlabeled level: 16 of 16 slots filled']
    agreement = figures['gap'].axes[1].lines[0].get_ydata()
    assert agreement[-1] == pytest.approx(100 * np.trace(diagnosis['agreement']) / 360)


@pytest.mark.slow
def test_equal_data_make_equal_files(folder, tmp_path):
    for name in 'ab':
        command.write([folder], tmp_path / name, ('svg',), ('k_s',))
    assert (tmp_path / 'a' / 'k_s.svg').read_bytes() == (tmp_path / 'b' / 'k_s.svg').read_bytes()


def without(folder, target, *names):
    """A copy of a run, its checkpoints aside."""
    target.mkdir()
    for name in {'config.json', 'summary.json', 'metrics.jsonl', 'partition.npz'} - set(names):
        (target / name).write_bytes((folder / name).read_bytes())
    return target


MISTAKES = {
    '--out=OUT --only=acuracy': "--only='acuracy'",
    '': '--out is missing',
    '--out=OUT --only=queue': '--config.diagnostics_every=ROUNDS',
    '--out=OUT --only=features': 'has no checkpoint',
    '--out=FILE --only=k_s': 'another --out',
}


@pytest.mark.slow
@pytest.mark.parametrize('options', MISTAKES)
def test_mistakes_end_in_one_line(folder, tmp_path, capsys, options):
    (tmp_path / 'file').write_text('')
    words = options.replace('OUT', str(tmp_path / 'out')).replace('FILE', str(tmp_path / 'file')).split()
    assert command.main(['plots', str(without(folder, tmp_path / 'run')), *words]) == 2
    assert_one_line(capsys.readouterr().err, [MISTAKES[options]])


@pytest.mark.slow
def test_a_figure_that_cannot_be_drawn_ends_no_other(folder, tmp_path, capsys):
    copied = without(folder, tmp_path / 'run')
    assert command.main(['plots', str(copied), f'--out={tmp_path}/out', '--only=queue,k_s']) == 2
    printed = capsys.readouterr()
    assert printed.out.startswith('not drawn  queue: ')
    assert_one_line(printed.err, ['has no diagnostics'])
    assert [path.name for path in (tmp_path / 'out').iterdir()] == ['k_s.png']


@pytest.mark.slow
def test_a_folder_without_a_finished_run_is_named(folder, tmp_path, capsys):
    copied = without(folder, tmp_path / 'run', 'summary.json')
    assert command.main(['plots', str(copied), f'--out={tmp_path}/out']) == 2
    assert_one_line(capsys.readouterr().err, [str(copied)])


@pytest.mark.slow
def test_without_matplotlib_one_line_says_so(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, 'matplotlib', None)
    assert command.main(['plots', str(folder), f'--out={tmp_path}/out']) == 2
    assert_one_line(capsys.readouterr().err, ["pip install -e '.[plots]'"])


@pytest.mark.parametrize('algorithm', [name for name, method in algorithms.METHODS.items() if not method.in_parts])
def test_the_model_of_a_method_is_what_its_state_calls_the_student(algorithm):
    """Features are drawn of `state.student` and `state.teacher`: they have to be what the method predicts with."""
    model = toy.model()
    method = algorithms.build(algorithm, model, toy.VIEWS, toy.HPARAMS)
    state, images = method.init(jax.random.key(0)), toy.federation().client_images[:4]
    for name, logits in method.predict(state, images).items():
        variables = getattr(state, name)
        features, _ = model.bottom(variables.bottom, toy.VIEWS.normalize(images), None, False)
        np.testing.assert_allclose(model.top(variables.top, features, None, False)[0], logits, rtol=1e-5, atol=1e-6)


def test_every_method_has_a_name_and_a_look():
    """One in the order of colors, for a method with no look in its record."""
    drawn = style.looks([method.label for method in algorithms.METHODS.values()])
    assert len({look[1:] for look in drawn.values()}) == len(drawn) == len(algorithms.METHODS)


MINE = """
import dataclasses
from semisfl_jax import algorithms
algorithms.register(dataclasses.replace(algorithms.get('semisfl'), name='mine', look=None))
"""


@pytest.mark.slow
def test_a_method_of_the_user_is_imported(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys, 'path', list(sys.path))
    (tmp_path / 'mine.py').write_text(MINE)
    words = ['plots', str(tmp_path / 'run'), f'--out={tmp_path}/out', '--only=features']
    try:
        exec(MINE, {'__name__': 'mine'})
        assert runs.run(tmp_path / 'run', algorithm='mine') == 0
        algorithms.METHODS.pop('mine')
        capsys.readouterr()
        assert command.main(words) == 2
        assert_one_line(capsys.readouterr().err, ["'mine' is unknown", '--import=FILE'])
        assert command.main([*words, f'--import={tmp_path}/mine.py']) == 0
    finally:
        algorithms.METHODS.pop('mine', None)
    assert (tmp_path / 'out' / 'features.png').exists()


def test_a_file_that_cannot_be_imported_is_one_line(tmp_path, capsys):
    file = tmp_path / 'mine.py'
    assert command.main(['plots', str(tmp_path), f'--out={tmp_path}/out', f'--import={file}']) == 2
    assert_one_line(capsys.readouterr().err, [str(file), 'cannot be read'])
    assert not (tmp_path / 'out').exists()
