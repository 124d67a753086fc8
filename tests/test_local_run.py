"""Whole runs of the full-model methods: what they write, and that they go on, with images on the host, in trials."""

import json

import pytest

from tests import runs

# Two rounds in which every client reads its images once, and goes on with its momentum.
LOCAL = {'rounds': 2, 'checkpoint_every': 1, 'local__epochs': 1, 'local__optimizer_state': 'kept'}
EVERYTHING = {'algorithm': 'fedavg', 'data__client_labels': 20, 'federation__mu': 1, **LOCAL}


@pytest.mark.slow
def test_outputs(tmp_path):
    assert runs.run(tmp_path, **EVERYTHING) == 0
    for record in runs.records(tmp_path):
        assert record['loss_local'] > 0
        assert record['loss_clustering'] is None
        assert 0 <= record['student_accuracy'] <= 1
        assert 'teacher_accuracy' not in record
        assert record['k_s'] == 8
        # 10 clients share 1,397 images without labels evenly, and 20 with; a batch has 2 of each: 70 batches
        images = record['images_per_second'] * record['wall_seconds'] - 8 * 4
        assert images == pytest.approx(3 * 70 * 4, rel=0.02)
    assert json.loads((tmp_path / 'summary.json').read_text())['headline'] == 'student'


BY_LABELS = {'data__client_labels': 40, 'federation__mu': 1, 'k_s': 0, **LOCAL}
del BY_LABELS['local__optimizer_state']  # fresh ones are all there are
METHODS = {
    'fedavg': EVERYTHING,
    'semifl': {'threshold': 0.115, 'semifl__batch_norm_data': 'server', **LOCAL},  # soon some images are confident
    'fedmatch': {'threshold': 0.3, 'fedmatch__helper_every': 1, **BY_LABELS, 'data__client_labels': 20, 'k_s': 4},
    'feddure': {'feddure__fine_rate': 5.0, **BY_LABELS},
    'fed_shvr': {'fed_shvr__ramp_rounds': 2, 'momentum': 0.5, 'federation__labeled_partition': 'classes', **BY_LABELS},
}


@pytest.mark.as_for_users
@pytest.mark.parametrize('name', METHODS)
def test_a_trial_that_goes_on_with_images_on_the_host_is_the_single_run(tmp_path, name):
    """So what clients keep is in the checkpoints."""
    changes = METHODS[name] | {'algorithm': name}
    assert runs.run(tmp_path / 'whole', **changes) == 0
    trials = changes | {'data__residency': 'host', 'seeds': '0,1', 'parallel__trials': 'loop'}
    assert runs.run(tmp_path / 'seeds', **trials | {'rounds': 1}) == 0
    assert runs.run(tmp_path / 'seeds', **trials) == 0
    assert runs.lines(tmp_path / 'seeds' / 'seed_0') == runs.lines(tmp_path / 'whole')
    last = runs.records(tmp_path / 'whole')[-1]
    moved = ('loss_local', 'mask_rate', 'loss_inter_client', 'coarse_effect', 'correction_norm')
    assert last[dict(zip(METHODS, moved, strict=True))[name]] != 0
    if name == 'fedavg':
        assert runs.run(tmp_path / 'fresh', **(changes | {'local__optimizer_state': 'fresh'})) == 0
        kept, fresh = (runs.lines(tmp_path / folder) for folder in ('whole', 'fresh'))
        assert [a == b for a, b in zip(kept, fresh, strict=True)] == [True, False]  # at first nobody has anything


def test_labels_at_clients_where_none_exist_are_named(tmp_path, capsys):
    assert runs.run(tmp_path / 'run', algorithm='fedavg', local__objective='supervised') == 2
    assert 'data.client_labels=0' in capsys.readouterr().err
