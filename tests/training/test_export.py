"""Models that leave: what was exported predicts as the run does, without the package."""

import json
import shlex
import subprocess
import sys

import jax
import numpy as np
import pytest
from jax import export as jax_export

import semisfl_jax as sfl
from semisfl_jax.base.errors import UserError
from semisfl_jax.config import command_line
from semisfl_jax.training import experiment, export
from tests.helpers import needs, runs, toy_objects

SHORT = {**runs.TINY, 'rounds': 2}


@pytest.fixture(scope='module')
def folder(tmp_path_factory):
    """A tiny run of SemiSFL, whose teacher and student differ."""
    made = tmp_path_factory.mktemp('exported') / 'run'
    sfl.train(sfl.get_config('digits', SHORT), made)
    return made


@pytest.mark.parametrize('model', ['', 'student'])
def test_an_exported_model_predicts_to_the_bit_without_the_package(folder, tmp_path, model):
    """The lines of its README run where there are JAX and NumPy; to the bit, since it is the same machine."""
    before = runs.files(folder)
    assert runs.command('export', folder, tmp_path / 'out', *([f'--model={model}'] if model else [])) == 0
    assert runs.files(folder) == before
    images = np.random.default_rng(0).integers(0, 256, (13, 8, 8, 1), np.uint8)
    np.save(tmp_path / 'images.npy', images)
    code = (tmp_path / 'out' / 'README.md').read_text().split('```')[1].removeprefix('python\n')
    ends = 'import sys\nassert not {"semisfl_jax", "flax", "safetensors"} & {*sys.modules}\n'
    code = f'import numpy\nimages = numpy.load("../images.npy")\n{code}numpy.save("../logits.npy", outputs)\n{ends}'
    ended = subprocess.run([sys.executable, '-I', '-c', code], cwd=tmp_path / 'out', capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    expected = sfl.load_trained(folder).predict(images)
    assert not np.array_equal(expected['teacher'], expected['student'])
    np.testing.assert_array_equal(np.load(tmp_path / 'logits.npy'), expected[model or 'teacher'])


def test_its_description_says_what_a_caller_must_know(folder, tmp_path):
    described = sfl.export(folder, tmp_path / 'out')
    assert json.loads((tmp_path / 'out' / 'model.json').read_text()) == described
    last = runs.records(folder)[-1]
    assert described['scores'] == {key: value for key, value in last.items() if key.startswith('teacher_')}
    assert {'teacher_accuracy', 'teacher_accuracy_per_class'} < described['scores'].keys()
    assert f'teacher_accuracy in round {last["round"]}, test images: {last["teacher_accuracy"]:.4f}' in export.card(
        described
    )
    assert (described['round'], described['images']['shape']) == (2, [8, 8, 1])
    assert described['outputs'] == {'': {'shape': [10], 'dtype': 'float32'}}
    scaled = sfl.load_data(folder).train_images / 255
    assert described['normalization']['mean'] == pytest.approx([scaled.mean()])
    assert described['normalization']['std'] == pytest.approx([scaled.std()])
    made = command_line.parse(shlex.split(described['command'])[1:])
    assert sfl.identity_hash(sfl.resolve(made.config)) == sfl.identity_hash(
        json.loads((folder / 'config.json').read_text())
    )
    card = (tmp_path / 'out' / 'README.md').read_text()
    assert f'{last["teacher_accuracy"]:.4f}' in card
    assert 'normalizes them itself; gives [N, 10] of float32.' in card


def test_what_cannot_be_exported_is_told_and_writes_nothing(folder, tmp_path):
    with pytest.raises(UserError, match=r"--model=techer: the run has no such output; .*'teacher'"):
        sfl.export(folder, tmp_path / 'out', 'techer')
    with pytest.raises(UserError, match='no checkpoint of round 1: it has those of rounds 2'):
        sfl.export(folder, tmp_path / 'out', round_number=1)
    assert not (tmp_path / 'out').exists()
    (tmp_path / 'full').mkdir()
    (tmp_path / 'full' / 'mine').touch()
    with pytest.raises(UserError, match='full exists; give a new folder'):
        sfl.export(folder, tmp_path / 'full')
    assert [path.name for path in (tmp_path / 'full').iterdir()] == ['mine']
    assert runs.command('export', folder) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    'name', ['fedmatch', 'fed_shvr', 'm_fed', 'mfed_local']
)  # in parts, with state at clients, dense
def test_outputs_of_other_methods_can_be_exported(name):
    built = experiment.build(sfl.resolve(sfl.get_config('digits', SHORT | needs.changes(name))))
    state = jax.jit(built.algorithm.init)(built.key)
    images = built.dataset.test_images[:5]
    for output, expected in experiment.compile_with(built.config)(built.algorithm.predict)(state, images).items():
        weights, program, _ = export._program(built, state, output)
        loaded = jax_export.deserialize(program.serialize())
        assert loaded.platforms == ('cpu', 'cuda', 'tpu')
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), loaded.call(weights, images), expected)
        assert len(weights) < len(jax.tree.leaves(state)), 'what the output does not depend on is left out'


@pytest.mark.slow
def test_objects_are_exported_for_any_number_of_images(monkeypatch):
    """Traced, not compiled; at most six objects in an image."""
    toy_objects.small_model(monkeypatch)
    changes = toy_objects.NEEDS | {'algorithm': 'mfed_fl', 'batch_size': 2}
    built = experiment.build(sfl.resolve(sfl.get_config('digits', SHORT | needs.changes('mfed_fl') | changes)))
    state = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), jax.eval_shape(built.algorithm.init, built.key))
    found = {'boxes': [6, 4], 'labels': [6], 'masks': [6, 28, 28], 'scores': [6], 'valid': [6]}
    shapes = {'instances': found, 'panoptic': found | {'semantic': [32, 32]}, 'persons': {'peaks': [5, 30, 4]}}
    for name, expected in shapes.items():
        program = export._program(built, state, name)[1]
        assert {part: array['shape'] for part, array in export._outputs(program).items()} == expected
        assert {str(array.shape[0]) for array in program.out_avals} == {'batch'}
