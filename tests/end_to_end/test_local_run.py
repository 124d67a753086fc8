"""Whole runs of methods whose clients keep something: what they write; that they go on, also on the host, in trials."""

import json

import pytest

from tests.helpers import runs

# Two rounds in which every client reads its images once, and goes on with its momentum.
LOCAL = {'rounds': 2, 'checkpoint_every': 1, 'local__epochs': 1, 'local__optimizer_state': 'kept'}
EVERYTHING = {'algorithm': 'fedavg', 'data__client_labels': 20, 'federation__mu': 1, **LOCAL}


@pytest.mark.slow
def test_a_run_of_whole_models_writes_its_lines_and_clients(tmp_path):
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
    'semisfl_prior': {'threshold': 0.115, 'rounds': 2, 'checkpoint_every': 1},
    'feddure': {'feddure__fine_rate': 5.0, **BY_LABELS},
    'fed_shvr': {'fed_shvr__ramp_rounds': 2, 'momentum': 0.5, 'federation__labeled_partition': 'classes', **BY_LABELS},
}
MOVED = dict.fromkeys(METHODS, 'mask_rate') | {
    'fedavg': 'loss_local',
    'fedmatch': 'loss_inter_client',
    'feddure': 'coarse_effect',
    'fed_shvr': 'correction_norm',
}
TRIALS = {'data__residency': 'host', 'seeds': '0,1', 'parallel__trials': 'loop'}


def go_on(tmp_path, name, **changes):
    """Whether a run that stops after a round and goes on, with the changes, writes the lines of a whole one."""
    settings = METHODS[name] | {'algorithm': name}
    assert runs.run(tmp_path / 'whole', **settings) == 0
    for rounds in (1, 2):
        assert runs.run(tmp_path / 'stopped', **settings | changes | {'rounds': rounds}) == 0
    assert abs(runs.records(tmp_path / 'whole')[-1][MOVED[name]] or 0) > 0
    folder = tmp_path / 'stopped' / ('seed_0' if 'seeds' in changes else '')
    return runs.lines(folder) == runs.lines(tmp_path / 'whole')


@pytest.mark.slow
@pytest.mark.parametrize('name', [name for name in METHODS if name != 'semifl'])  # which goes on below
def test_what_clients_keep_is_in_the_checkpoints(tmp_path, name):
    assert go_on(tmp_path, name)
    if name == 'fedavg':
        fresh = METHODS[name] | {'algorithm': name, 'local__optimizer_state': 'fresh'}
        assert runs.run(tmp_path / 'fresh', **fresh) == 0
        lines = zip(runs.lines(tmp_path / 'whole'), runs.lines(tmp_path / 'fresh'), strict=True)
        assert [a == b for a, b in lines] == [True, False]  # at first nobody has anything


@pytest.mark.as_for_users
@pytest.mark.parametrize('name', ['fedavg', 'semifl'])
def test_a_trial_that_goes_on_with_images_on_the_host_is_the_single_run(tmp_path, name):
    assert go_on(tmp_path, name, **TRIALS)
