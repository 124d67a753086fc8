"""Dense tasks from the command to the summary: partition, resumed runs, failures, trivial predictions, messages."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest

import semisfl_jax as sfl
from semisfl_jax import config as config_lib
from semisfl_jax import data, tasks
from semisfl_jax import runs as runs_lib
from semisfl_jax.algorithms import task_model
from semisfl_jax.base.errors import UserError
from semisfl_jax.data.partition import check_tasks
from semisfl_jax.lab.studies import measures, statistics
from semisfl_jax.lab.studies.spec import Measure
from semisfl_jax.training import load
from tests.helpers import runs, toy_scenes
from tests.helpers.needs import changes
from tests.helpers.studies_words import study

SETTINGS = {
    **{key.replace('.', '__'): value for key, value in changes('m_fed').items()},
    'k_u': 1,
    'batch_size': 4,
    'rounds': 2,
    'optimizer': 'adam',
    'nesterov': False,
    'lr': 0.01,
    'augment__crop': 0.125,
    'augment__flip': True,
    'federation__partition': 'dirichlet',
    'federation__alpha': 1.0,
    'checkpoint_every': 1,
}

VOID = tasks.IGNORED
THREE = {  # tasks, of which clients hold 20 images each
    'data__tasks': ('semseg', 'depth', 'saliency'),
    'data__num_unlabeled': 20,
    'federation__num_clients': 9,
    'federation__num_active': 9,
    'eval_batch_size': 5,
}


def scenes(image_size=0):
    """The toy scenes, in which a square is salient if its class is 1, and classes of two rows are unknown."""
    made = toy_scenes.load()
    classes = [maps.copy() for maps in made.targets['semseg'][:2]]
    squares = data.dataset.Targets(*((maps == 1).astype(np.uint8) for maps in classes), 1)
    for maps in classes:
        maps[:, :2] = tasks.IGNORED
    semseg = data.dataset.Targets(*classes, 3)
    return dataclasses.replace(made, targets={**made.targets, 'semseg': semseg, 'saliency': squares})


@pytest.fixture(scope='module', autouse=True)
def small():
    with pytest.MonkeyPatch.context() as patch:
        toy_scenes.small_model(patch)
        patch.setitem(data.READERS, toy_scenes.NAME, scenes)
        yield


def train(folder, **others):
    return runs.run(folder, **SETTINGS | others)


@pytest.fixture(scope='module')
def finished(tmp_path_factory):
    """A run of three tasks."""
    folder = tmp_path_factory.mktemp('dense') / 'run'
    assert train(folder, **THREE) == 0
    return folder


def test_a_run_reports_every_task(finished):
    summary, (first, last) = json.loads((finished / 'summary.json').read_text()), runs.records(finished)
    assert summary['headline'] == 'semseg'
    assert summary['final_miou'] == last['semseg_miou']
    assert summary['best_miou'] == max(first['semseg_miou'], last['semseg_miou'])
    assert summary['scores'] == {key: last[key] for key in ('semseg_miou', 'depth_rmse', 'saliency_iou')}
    assert last['semseg_loss'] < first['semseg_loss']
    losses = [last[f'{name}_loss'] for name in THREE['data__tasks']]
    assert last['loss_local'] == pytest.approx(np.mean(losses), rel=1e-6)


def split(**others):
    """Of the images: client_index of a partition."""
    config = config_lib.resolve(runs.config(**SETTINGS | others))
    return data.make_partition(toy_scenes.load(), config).client_index


def test_clients_of_a_task_divide_its_images_whatever_other_tasks_there_are():
    both = split()
    for task, name in enumerate(toy_scenes.TASKS):
        assert sorted(np.concatenate(both[task::2])) == list(range(toy_scenes.TRAIN))
        alone = split(data__tasks=(name,), federation__num_clients=5, federation__num_active=5)
        for rows, others in zip(alone, both[task::2], strict=True):
            np.testing.assert_array_equal(rows, others)
    assert any(len(np.intersect1d(rows, both[1])) for rows in both[::2])
    assert not np.array_equal(both[0], both[1])
    disjoint = split(data__task_images='disjoint', federation__partition='uniform')
    assert sorted(np.concatenate(disjoint)) == list(range(toy_scenes.TRAIN))


def test_a_task_with_few_images_has_some_of_those_it_has_with_many_and_the_others_what_they_have():
    few, many, as_ever = (split(**counts) for counts in (FEW, {'data__images_of_tasks': (30, 0)}, {}))
    assert sum(map(len, few[::2])) == 10
    assert set(np.concatenate(few[::2])) < set(np.concatenate(many[::2]))
    for rows, others in zip(few[1::2], as_ever[1::2], strict=True):
        np.testing.assert_array_equal(rows, others)


FEW = {'data__images_of_tasks': (10, 0)}
HOST = {'data__residency': 'host', 'seeds': '0,1', 'parallel__trials': 'loop'}


@pytest.mark.slow
@pytest.mark.parametrize('algorithm', ['m_fed', 'mfed_local'])
def test_a_run_goes_on_and_equals_its_trial_with_images_on_the_host(tmp_path, algorithm):
    """To the bit."""
    assert train(tmp_path / 'whole', algorithm=algorithm) == 0
    assert train(tmp_path / 'parts', algorithm=algorithm, rounds=1) == 0
    assert train(tmp_path / 'parts', algorithm=algorithm) == 0
    assert runs.lines(tmp_path / 'parts') == runs.lines(tmp_path / 'whole')
    assert train(tmp_path / 'seeds', algorithm=algorithm, **HOST) == 0
    assert runs.lines(tmp_path / 'seeds' / 'seed_0') == runs.lines(tmp_path / 'whole')
    both = json.loads((tmp_path / 'seeds' / 'summary.json').read_text())
    assert both['trials'][0]['trivial_scores'] == runs_lib.read_run(tmp_path / 'whole').trivial_scores
    for scores in ('scores', 'trivial_scores'):
        of = (lambda found: found['constant']) if scores == 'trivial_scores' else (lambda found: found)
        values = [of(trial[scores])['depth_rmse'] for trial in both['trials']]
        assert of(both[scores])['depth_rmse']['mean'] == pytest.approx(np.mean(values))
        assert (values[0] == values[1]) == (scores == 'trivial_scores')  # which are of the same maps


@pytest.mark.slow
def test_a_run_starts_with_the_encoders_of_another(tmp_path, capsys):
    """Each seed with its own, whether it is alone or not: the mean over tasks, to the bit. It goes on without them."""
    first, start = tmp_path / 'first', {'model__weights': str(tmp_path / 'first'), **FEW}
    assert train(first, seeds='0,1') == 0
    assert train(tmp_path / 'seeds', seeds='0,1', **start) == 0
    assert train(tmp_path / 'one', seed=1, **start) == 0
    assert runs.lines(tmp_path / 'seeds' / 'seed_1') == runs.lines(tmp_path / 'one')
    folders = {first / 'seed_1': None, tmp_path / 'one': 0}
    ended, begun = (load.state(folder, load.experiment(folder), number)[1] for folder, number in folders.items())
    encoders = [task_model.part(ended.student, name).bottom for name in toy_scenes.TASKS]
    mean = jax.tree.map(lambda *leaves: np.mean(leaves, axis=0), *encoders)
    for name in toy_scenes.TASKS:
        jax.tree.map(np.testing.assert_array_equal, task_model.part(begun.student, name).bottom, mean)

    about = next((first / 'seed_0' / 'checkpoints').glob('*/about/metadata'))
    other = about.read_text().replace('"sha256": "', '"sha256": "0')
    about.write_text(other)
    for longer in ({}, {'rounds': 3}):
        assert train(tmp_path / 'one', seed=1, **start | longer) == 2
        assert 'began with something else (model.weights: ' in capsys.readouterr().err
    first.rename(tmp_path / 'gone')
    assert train(tmp_path / 'one', seed=1, **start | {'rounds': 3}) == 0  # its checkpoint has them
    assert sfl.load_trained(tmp_path / 'one').round == 3
    with pytest.raises(UserError, match=r'model\.weights=.* gone'):
        sfl.load_trained(tmp_path / 'one', 0)


@pytest.mark.parametrize(
    ('wrong', 'key'),
    [
        ({'data__tasks': ('semseg', 'edges')}, 'edges'),
        ({'data__tasks': ()}, 'data.tasks'),
        ({'data__tasks': ('depth', 'depth')}, 'depth'),
        ({'federation__num_active': 5}, 'federation.num_active=5'),
        ({'model__name': 'small_cnn'}, "model.name='small_cnn'"),
        ({'data__client_labels': 0, 'data__num_labeled': 40}, 'labels'),
        ({'augment__supervised': 'strong'}, "augment.supervised='strong'"),
        ({'algorithm': 'semisfl', 'data__tasks': (), 'local__epochs': 0, 'k_s': 2}, "model.name='scene_net'"),
        ({'mfed__weight': 1.5}, 'mfed.weight=1.5'),
        ({'data__images_of_tasks': (10,)}, 'data.images_of_tasks=(10,)'),
        ({'data__images_of_tasks': (10, 4)}, 'gives depth 4 images for 5 clients'),
        ({'data__images_of_tasks': (10, 999)}, 'data.images_of_tasks gives depth 999 images, but'),
        ({**FEW, 'data__task_images': 'disjoint'}, "data.task_images='shared'"),
        ({'model__weights': '.'}, 'model.weights='),
    ],
)
def test_wrong_input_names_its_key(tmp_path, capsys, wrong, key):
    assert train(tmp_path / 'run', **wrong) == 2
    assert key in capsys.readouterr().err
    assert not (tmp_path / 'run').exists()


def test_maps_with_numbers_of_no_class_are_refused():
    made = toy_scenes.load()
    for split in ('train', 'test'):
        spoiled = getattr(made.targets['semseg'], split).copy()
        spoiled[-1, 0, :2] = 255, 3  # no truth, and a fourth class
        targets = {'semseg': made.targets['semseg']._replace(**{split: spoiled})}
        with pytest.raises(UserError, match='semseg'):
            check_tasks(dataclasses.replace(made, targets=targets), ['semseg'])


@pytest.mark.parametrize('split', ['train', 'test'])
@pytest.mark.parametrize('shown', [1, 0])  # which of the two kinds of pixels 255 stands for
@pytest.mark.parametrize('name', ['saliency', 'semseg', 'depth', 'keypoints'])
def test_masks_of_255_are_refused(split, shown, name):
    """255 is no truth: without those pixels, one kind is left, and nothing to learn; the next line is a right one."""
    made, mask = toy_scenes.load(), np.arange(64).reshape(1, 8, 8) % 5 == 0
    outputs = {'semseg': 2}.get(name, 1)
    right = data.dataset.Targets(mask.astype(np.uint8), mask.astype(np.uint8), outputs)
    check_tasks(dataclasses.replace(made, targets={name: right}), [name])
    wrong = right._replace(**{split: np.where(mask == shown, VOID, 1 - shown).astype(np.uint8)})
    with pytest.raises(UserError, match=f"'{name}': all known pixels of {split} maps are {1 - shown}, and others 255"):
        check_tasks(dataclasses.replace(made, targets={name: wrong}), [name])


def test_maps_of_one_number_are_said_to_have_no_score(caplog):
    made, maps = toy_scenes.load(), np.zeros((2, 8, 8), np.uint8)
    targets = data.dataset.Targets(np.eye(8, dtype=np.uint8)[None], maps, 1)
    check_tasks(dataclasses.replace(made, targets={'saliency': targets}), ['saliency'])
    assert "'saliency': all known pixels of test maps are 0, so" in caplog.text


# --- trivial predictions


def test_the_summary_of_a_run_has_them(finished):
    """From its own clients' maps."""
    names, made = THREE['data__tasks'], scenes()
    partition = data.load_partition(finished / 'partition.npz')
    held = {name: np.concatenate(partition.client_index[i::3]) for i, name in enumerate(names)}
    assert {len(rows) for rows in held.values()} == {20}
    train = {name: made.targets[name].train[held[name]] for name in names}
    test = {name: made.targets[name].test for name in names}
    known = test['semseg'][test['semseg'] != VOID]
    miou = np.mean(known == np.bincount(train['semseg'].ravel())[:VOID].argmax()) / len(np.unique(known))
    mean = np.mean(train['depth'][train['depth'] != VOID]) / 254
    depth = test['depth'][test['depth'] != VOID] / 254
    salient, objects = test['saliency'] == 1, (test['semseg'] > 0) & (test['semseg'] != VOID)
    of_objects = np.mean(np.sum(salient & objects, (1, 2)) / np.sum(salient | objects, (1, 2)))
    found = runs_lib.read_run(finished)
    assert found.trivial_scores == {
        'constant': {
            'semseg_miou': pytest.approx(miou),
            'depth_rmse': pytest.approx(np.mean((depth - mean) ** 2) ** 0.5, rel=1e-5),
            'saliency_iou': pytest.approx(max(np.mean(salient), np.mean(~salient.any((1, 2))))),
        },
        'objects': {'saliency_iou': pytest.approx(of_objects)},
    }
    assert found.trivial('objects').curve('saliency_iou')[2] == pytest.approx(of_objects)
    assert {*found.trivial('objects').table['key']} == {'saliency_iou'}


def test_no_test_is_made_of_them():
    """M-Fed is compared with the two other methods alone, in a table whose cells all have values."""
    definition = study('mfed_table3', 'smoke')
    scores = {'instances_mask_ap': 0.1, 'panoptic_pq': 0.3, 'persons_oks_ap': 0.2, 'stuff_miou': 0.5}
    line, settings = {'round': 1} | scores, {'data.tasks': ['instances', 'panoptic', 'persons', 'stuff']}
    made = {seed: runs_lib.Run(Path(str(seed)), settings, seed, 'stuff', runs_lib.rows([line])) for seed in (0, 1, 2)}
    trivial = {'trivial_scores': {'constant': line}, 'score': tasks.MIOU}
    made = {seed: run._replace(**trivial) for seed, run in made.items()}
    (table,) = definition.tables
    found = {}
    for cell in table.cells:
        numbers = measures.values(cell.measure, made, made)
        found[table.title, cell.row, cell.column] = measures.CellResult(made, numbers, '', [])
    differences = statistics.difference_rows(definition, found)
    assert {line['minus'] for line in differences} == {'Local', 'FL per task'}
    assert [row[0] for row in statistics.difference_grid(table, differences).rows] == ['Local', 'FL per task']


def test_a_study_reads_the_scores_of_dense_runs(finished):
    """The levels of its runs, and the gain over the models of another row; nothing of runs that recorded none."""
    made = runs_lib.read_run(finished)
    level = made.trivial_scores['constant']
    trivial = {0: made.trivial('constant')}
    assert measures.values(Measure('semseg_miou'), trivial) == {0: 100 * level['semseg_miou']}
    last = {key: made.curve(key)[2] for key in level}
    gains = {'semseg_miou': 1, 'depth_rmse': -1, 'saliency_iou': 1}
    gain = np.mean([sign * (level[key] / last[key] - 1) for key, sign in gains.items()])
    assert measures.values(Measure('delta_m', reference='Local'), trivial, {0: made}) == {0: pytest.approx(100 * gain)}
    old = made._replace(trivial_scores={})
    assert measures.values(Measure('semseg_miou'), {0: old.trivial('constant')}) == {}
