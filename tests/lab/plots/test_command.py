"""Figures of runs: what is read from their folders, and the command that draws all of it."""

import jax
import numpy as np
import pytest

from semisfl_jax import algorithms, data
from semisfl_jax import runs as runs_lib
from semisfl_jax.lab.plots import draw, style
from semisfl_jax.training import diagnostics
from tests.helpers import runs, toy
from tests.helpers.one_line import assert_one_line


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
    assert runs.command('plots', folder, f'--out={tmp_path}', '--format=png,svg') == 0
    printed = capsys.readouterr().out
    expected = {f'{name}.{kind}' for name in set(draw.FIGURES) - {'predictions'} for kind in ('png', 'svg')}
    assert {path.name for path in tmp_path.iterdir()} == expected
    assert all(str(tmp_path / name) in printed for name in expected)
    assert runs.files(folder) == before, 'drawing leaves a run as it is'


@pytest.mark.slow
def test_the_figures_show_the_run(folder):
    """From files to Axes; what each plot makes of its data is tested by itself."""
    groups = runs_lib.group([runs_lib.read_run(folder)])
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


def test_a_key_is_drawn_by_its_name(tmp_path, capsys):
    scores = {
        'teacher_accuracy': [0.5, 0.6],
        'teacher_macro_f1': [0.4, 0.5],
        'teacher_accuracy_per_class': [[0.5, 1]] * 2,
    }
    made = runs.write_run(tmp_path / 'run', 0, 'semisfl', scores)
    names = 'macro_f1', 'teacher_macro_f1', 'teacher_accuracy_per_class/1', 'accuracy_per_class'
    assert runs.command('plots', made, f'--out={tmp_path}/out', f'--only={",".join(names)}') == 0
    assert {path.stem for path in (tmp_path / 'out').iterdir()} == {name.replace('/', '-') for name in names}
    assert runs.command('plots', made, f'--out={tmp_path}/out', '--only=macro_f2') == 2
    assert_one_line(capsys.readouterr().err, ["did you mean 'macro_f1'"])


def without_checkpoints(folder, target):
    target.mkdir()
    for name in ('config.json', 'summary.json', 'metrics.jsonl', 'partition.npz', 'began.json'):
        (target / name).write_bytes((folder / name).read_bytes())
    return target


MISTAKES = {
    '--out=OUT --only=acuracy': "--only='acuracy'",
    '': '--out',
    '--out=OUT --only=queue': '--config.diagnostics_every',
    '--out=OUT --only=features': 'checkpoint',
    '--out=FILE --only=k_s': '--out',
    '--out=OUT --import=none.py': 'none.py',
}


@pytest.mark.slow
def test_mistakes_end_in_one_line(folder, tmp_path, capsys):
    (tmp_path / 'file').write_text('')
    copied = without_checkpoints(folder, tmp_path / 'run')
    for options, named in MISTAKES.items():
        words = options.replace('OUT', str(tmp_path / 'out')).replace('FILE', str(tmp_path / 'file')).split()
        capsys.readouterr()
        assert runs.command('plots', copied, *words) == 2
        assert_one_line(capsys.readouterr().err, [named])
    # a figure that cannot be drawn ends no other
    assert runs.command('plots', copied, f'--out={tmp_path}/out', '--only=queue,k_s') == 2
    assert [path.name for path in (tmp_path / 'out').iterdir()] == ['k_s.png']


WHOLE = [name for name, method in algorithms.METHODS.items() if not method.in_parts]


@pytest.mark.slow
@pytest.mark.parametrize('algorithm', WHOLE)
def test_the_model_of_a_method_is_what_its_state_calls_the_student(algorithm):
    """Features are drawn of `state.student` and `state.teacher`: they have to be what the method predicts with."""
    model = toy.model()
    method = algorithms.build(algorithm, model, toy.VIEWS, toy.HPARAMS)
    state, images = method.init(jax.random.key(0)), toy.federation().client_images[:4]
    for name, logits in method.predict(state, images).items():
        variables = getattr(state, name)
        features, _ = model.bottom(variables.bottom, toy.VIEWS.normalize(images), None, False)
        np.testing.assert_allclose(model.top(variables.top, features, None, False)[0], logits, rtol=1e-5, atol=1e-6)
