"""Runs of dense tasks by the command: resumed, with images on the host, several seeds, failures, files and messages."""

import dataclasses
import json

import numpy as np
import pytest

from semisfl_jax import data
from tests import runs, toy_scenes
from tests.needs import changes

SETTINGS = {
    **{key.replace('.', '__'): value for key, value in changes('m_fed').items()},
    'k_u': 1,
    'batch_size': 4,
    'rounds': 3,
    'optimizer': 'adam',
    'nesterov': False,
    'lr': 0.01,
    'augment__crop': 0.125,
    'augment__flip': True,
    'federation__partition': 'dirichlet',
    'federation__alpha': 1.0,
    'checkpoint_every': 1,
}


@pytest.fixture(autouse=True)
def small_model(monkeypatch):
    toy_scenes.small_model(monkeypatch)


def train(folder, **others):
    return runs.run(folder, **SETTINGS | others)


@pytest.mark.parametrize('algorithm', ['m_fed', 'mfed_fl', 'mfed_local'])
def test_a_run_goes_on_and_equals_its_trial_with_images_on_the_host(tmp_path, algorithm):
    """To the bit."""
    assert train(tmp_path / 'whole', algorithm=algorithm) == 0
    assert train(tmp_path / 'parts', algorithm=algorithm, rounds=1) == 0
    assert train(tmp_path / 'parts', algorithm=algorithm) == 0
    assert runs.lines(tmp_path / 'parts') == runs.lines(tmp_path / 'whole')
    if algorithm == 'm_fed':
        host = {'data__residency': 'host', 'seeds': '0,1', 'parallel__trials': 'loop'}
        assert train(tmp_path / 'seeds', algorithm=algorithm, **host) == 0
        assert runs.lines(tmp_path / 'seeds' / 'seed_0') == runs.lines(tmp_path / 'whole')
        both = json.loads((tmp_path / 'seeds' / 'summary.json').read_text())
        scores = [trial['scores']['depth_rmse'] for trial in both['trials']]
        assert both['scores']['depth_rmse']['mean'] == pytest.approx(np.mean(scores))


def test_a_run_reports_every_task(tmp_path, capsys):
    assert train(tmp_path) == 0
    out = capsys.readouterr().out
    summary, last = json.loads((tmp_path / 'summary.json').read_text()), runs.records(tmp_path)[-1]
    assert summary['headline'] == 'semseg'
    assert summary['final_miou'] == last['semseg_miou']
    assert summary['best_miou'] == max(record['semseg_miou'] for record in runs.records(tmp_path))
    assert summary['scores'] == {key: last[key] for key in ('semseg_miou', 'depth_rmse')}
    assert f'semseg mIoU {last["semseg_miou"]:.2%} after 3 rounds' in out
    assert f'all tasks: semseg mIoU {last["semseg_miou"]:.2%}, depth RMSE {last["depth_rmse"]:.4f}' in out
    assert '2 tasks: semseg, depth' in out
    assert last['semseg_loss'] < runs.records(tmp_path)[0]['semseg_loss']
    assert last['loss_local'] == pytest.approx((last['semseg_loss'] + last['depth_loss']) / 2, rel=1e-6)


def test_clients_of_a_task_divide_its_images_and_share_them_with_other_tasks(tmp_path):
    assert train(tmp_path, rounds=1) == 0
    split = data.load_partition(tmp_path / 'partition.npz')
    for task in range(2):
        rows = np.concatenate(split.client_index[task::2])
        assert sorted(rows) == list(range(toy_scenes.TRAIN))
    assert any(len(np.intersect1d(a, split.client_index[1])) for a in split.client_index[::2])
    assert train(tmp_path / 'again', rounds=1, data__partition_file=tmp_path / 'partition.npz') == 0
    assert runs.lines(tmp_path / 'again') == runs.lines(tmp_path)


def test_scores_of_validation_images(tmp_path, capsys):
    """Held out of all tasks; of each seed's own, on the device or the host, and by a file."""
    scored = {'data__num_validation': 12, 'data__eval_split': 'validation', 'rounds': 1}
    assert train(tmp_path / 'one', **scored) == 0
    out = capsys.readouterr().out
    assert '48 training and (held out of them) 12 VALIDATION images' in out
    assert 'semseg validation mIoU ' in out
    split = data.load_partition(tmp_path / 'one' / 'partition.npz')
    assert len(split.validation_index) == 12
    assert not np.intersect1d(np.concatenate(split.client_index), split.validation_index).size
    host = {'data__residency': 'host', 'seeds': '0,1', 'parallel__trials': 'loop'}
    assert train(tmp_path / 'seeds', **scored, **host) == 0
    assert runs.lines(tmp_path / 'seeds' / 'seed_0') == runs.lines(tmp_path / 'one')
    assert train(tmp_path / 'file', **scored, data__partition_file=tmp_path / 'one' / 'partition.npz') == 0
    assert runs.lines(tmp_path / 'file') == runs.lines(tmp_path / 'one')


def test_disjoint_images(tmp_path):
    assert train(tmp_path, rounds=1, data__task_images='disjoint', federation__partition='uniform') == 0
    rows = np.concatenate(data.load_partition(tmp_path / 'partition.npz').client_index)
    assert sorted(rows) == list(range(toy_scenes.TRAIN))


def test_the_images_of_a_task_do_not_depend_on_the_others(tmp_path):
    """Nor do its draws: without penalty the losses of both tasks are those of runs of each alone."""
    assert train(tmp_path / 'both', algorithm='mfed_fl', federation__num_active=10) == 0
    for name in toy_scenes.TASKS:
        alone = {'data__tasks': (name,), 'federation__num_clients': 5, 'federation__num_active': 5}
        assert train(tmp_path / name, algorithm='mfed_fl', **alone) == 0
        for one, both in zip(runs.records(tmp_path / name), runs.records(tmp_path / 'both'), strict=True):
            assert one[f'{name}_loss'] == both[f'{name}_loss']


def test_clients_that_fail_keep_their_models_and_the_run_goes_on(tmp_path):
    trace = tmp_path / 'trace.csv'
    trace.write_text('round,client,done\n' + ''.join(f'1,{client},0\n' for client in range(1, 10, 2)))
    assert train(tmp_path / 'run', failures__trace=trace, federation__num_active=10) == 0
    first, *others = runs.records(tmp_path / 'run')
    assert first['depth_loss'] is None
    assert first['loss_local'] == first['semseg_loss']
    assert first['clients_failed'] == 5
    assert all(record['depth_loss'] > 0 for record in others)


@pytest.mark.parametrize(
    ('wrong', 'said'),
    [
        ({'data__tasks': ('semseg', 'edges')}, "data set 'toy_scenes' has no dense task 'edges'; it has semseg, depth"),
        ({'data__tasks': ('semseg', 'semsag')}, "config.data.tasks: 'semsag' is unknown; "),
        ({'data__tasks': ()}, 'config.data.tasks is empty, but m_fed trains dense tasks'),
        ({'data__tasks': ('depth', 'depth')}, "names 'depth' twice"),
        ({'federation__num_active': 5}, 'config.federation.num_active=5 cannot be shared equally by 2 tasks'),
        ({'federation__num_clients': 9}, 'config.federation.num_clients=9 cannot be shared equally by 2 tasks'),
        ({'model__name': 'small_cnn'}, "config.model.name='small_cnn' classifies images, but m_fed needs"),
        ({'data__client_labels': 0, 'data__num_labeled': 40}, 'm_fed trains only on labels at the clients'),
        ({'augment__supervised': 'strong'}, "augment.supervised='strong'"),
        ({'k_s': 5}, 'm_fed trains only at the clients'),
        ({'data__name': 'digits'}, "data set 'digits' has no dense task 'semseg'; it has none"),
        (
            {'algorithm': 'semisfl', 'data__tasks': (), 'local__epochs': 0, 'k_s': 2},
            "config.model.name='scene_net' outputs maps",
        ),
        ({'mfed__weight': -1.0}, 'config.mfed.weight=-1.0 must be 0 or more'),
        ({'mfed__weight': 1.5}, 'config.mfed.weight=1.5 is above mfed.max_weight=1.0'),
    ],
)
def test_wrong_input_is_one_line(tmp_path, capsys, wrong, said):
    assert train(tmp_path / 'run', **wrong) == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert '\n' not in error
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('split', ['training', 'test'])
def test_maps_with_numbers_of_no_class_are_one_line(tmp_path, capsys, monkeypatch, split):
    made = toy_scenes.load()
    semseg = made.targets['semseg']
    spoiled = (semseg.train if split == 'training' else semseg.test).copy()
    spoiled[-1, 0, :2] = 255, 3  # no truth, and a fourth class
    semseg = semseg._replace(**{'train' if split == 'training' else 'test': spoiled})
    spoiled = dataclasses.replace(made, targets={**made.targets, 'semseg': semseg})
    monkeypatch.setitem(data.READERS, toy_scenes.NAME, lambda image_size: spoiled)
    assert train(tmp_path / 'run') == 2
    error = capsys.readouterr().err.strip()
    assert "'semseg': a map has the number 3, but with 3 outputs the largest is 2 (255: no truth)" in error
    assert '\n' not in error
