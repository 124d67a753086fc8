"""Whole runs of the full-model methods: what they write, that they go on, images on the host, several seeds."""

import json

import pytest

import launch
from tests import runs
from tests.marks import slow_but
from tests.one_line import assert_one_line

# Two rounds in which every client reads its images once, and goes on with its momentum.
LOCAL = {'rounds': 2, 'checkpoint_every': 1, 'local__epochs': 1, 'local__optimizer_state': 'kept'}
EVERYTHING = {'algorithm': 'fedavg', 'data__client_labels': 20, 'federation__mu': 1, **LOCAL}


@pytest.fixture(scope='module')
def reference(tmp_path_factory):
    folder = tmp_path_factory.mktemp('local') / 'run'
    assert runs.run(folder, **EVERYTHING) == 0
    return folder


def test_outputs(reference):
    for record in runs.records(reference):
        assert record['loss_local'] > 0
        assert record['loss_clustering'] is None
        assert 0 <= record['student_accuracy'] <= 1
        assert 'teacher_accuracy' not in record
        assert record['k_s'] == 8
        # 10 clients share 1,397 images without labels evenly, and 20 with; a batch has 2 of each: 70 batches
        images = record['images_per_second'] * record['wall_seconds'] - 8 * 4
        assert images == pytest.approx(3 * 70 * 4, rel=0.02)
    assert json.loads((reference / 'summary.json').read_text())['headline'] == 'student'


@pytest.mark.as_for_users
def test_what_clients_keep_is_in_the_checkpoints(reference, tmp_path):
    assert runs.run(tmp_path / 'parts', **(EVERYTHING | {'rounds': 1})) == 0
    assert runs.run(tmp_path / 'parts', **EVERYTHING) == 0
    assert runs.lines(tmp_path / 'parts') == runs.lines(reference)
    assert runs.run(tmp_path / 'fresh', **(EVERYTHING | {'local__optimizer_state': 'fresh'})) == 0
    with_kept_state, fresh = (runs.lines(folder) for folder in (reference, tmp_path / 'fresh'))
    assert with_kept_state[0] == fresh[0]  # nobody has anything yet
    assert with_kept_state[1] != fresh[1]


@pytest.mark.as_for_users
def test_images_on_the_host_give_the_same_bytes(reference, tmp_path):
    assert runs.run(tmp_path / 'run', **EVERYTHING, data__residency='host') == 0
    assert runs.lines(tmp_path / 'run') == runs.lines(reference)


@pytest.mark.as_for_users
def test_seeds_in_one_program_are_single_runs(reference, tmp_path):
    assert runs.run(tmp_path / 'run', **EVERYTHING, seeds='0,1', parallel__trials='loop') == 0
    assert runs.lines(tmp_path / 'run' / 'seed_0') == runs.lines(reference)


SEMIFL = {'algorithm': 'semifl', 'threshold': 0.115, **LOCAL}  # of 10 classes, so that some images are confident soon


@pytest.mark.as_for_users
def test_semifl_goes_on_and_equals_its_trial_with_images_on_the_host(tmp_path):
    assert runs.run(tmp_path / 'whole', **SEMIFL) == 0
    for record in runs.records(tmp_path / 'whole'):
        assert record['mask_rate'] > 0
        assert record['loss_local'] > 0
        assert 'after_server_accuracy' not in record
        # mean over clients, of images each once, in batches of 4 and a last one of those left, beside the server's 8
        clients = record['images_per_second'] * record['wall_seconds'] - 8 * 4
        trained = 3 * (1 - record['clients_sitting_out'])
        assert clients == pytest.approx(trained * record['client_images'], rel=0.02)
        assert record['client_images'] / 4 <= record['client_steps'] < record['client_images'] / 4 + 1
    assert runs.run(tmp_path / 'parts', **(SEMIFL | {'rounds': 1})) == 0
    assert runs.run(tmp_path / 'parts', **SEMIFL) == 0
    assert runs.lines(tmp_path / 'parts') == runs.lines(tmp_path / 'whole')
    # The model has no BatchNorm, so that it is all the same whose images its statistics would be taken from.
    host = {'data__residency': 'host', 'semifl__batch_norm_data': 'server'}
    assert runs.run(tmp_path / 'seeds', **SEMIFL, **host, seeds='0,1', parallel__trials='loop') == 0
    assert runs.lines(tmp_path / 'seeds' / 'seed_0') == runs.lines(tmp_path / 'whole')


FEDDURE = {
    'algorithm': 'feddure',
    'data__client_labels': 40,
    'federation__mu': 1,
    'k_s': 0,
    'feddure__fine_rate': 5.0,
    **{key: value for key, value in LOCAL.items() if key != 'local__optimizer_state'},  # fresh ones are all there are
}


@pytest.mark.as_for_users
def test_feddure_goes_on_and_equals_its_trial_with_images_on_the_host(tmp_path):
    assert runs.run(tmp_path / 'whole', **FEDDURE) == 0
    for record in runs.records(tmp_path / 'whole'):
        assert record['coarse_effect'] != 0
        assert 0 < record['weight_wrong'] < 1
    assert runs.run(tmp_path / 'parts', **(FEDDURE | {'rounds': 1})) == 0
    assert runs.run(tmp_path / 'parts', **FEDDURE) == 0
    assert runs.lines(tmp_path / 'parts') == runs.lines(tmp_path / 'whole')
    trials = {'data__residency': 'host', 'seeds': '0,1', 'parallel__trials': 'loop'}
    assert runs.run(tmp_path / 'seeds', **FEDDURE, **trials) == 0
    assert runs.lines(tmp_path / 'seeds' / 'seed_0') == runs.lines(tmp_path / 'whole')


FED_SHVR = {
    **FEDDURE,
    'algorithm': 'fed_shvr',
    'fed_shvr__ramp_rounds': 2,
    'momentum': 0.5,
    'federation__labeled_partition': 'classes',
}
del FED_SHVR['feddure__fine_rate']


@pytest.mark.as_for_users
def test_fed_shvr_goes_on_and_equals_its_trial_with_images_on_the_host(tmp_path):
    assert runs.run(tmp_path / 'whole', **FED_SHVR) == 0
    norms = [record['correction_norm'] for record in runs.records(tmp_path / 'whole')]
    assert norms[0] == 0
    assert min(norms[1:]) > 0
    assert runs.run(tmp_path / 'parts', **(FED_SHVR | {'rounds': 1})) == 0
    assert runs.run(tmp_path / 'parts', **FED_SHVR) == 0
    assert runs.lines(tmp_path / 'parts') == runs.lines(tmp_path / 'whole')
    trials = {'data__residency': 'host', 'seeds': '0,1', 'parallel__trials': 'loop'}
    assert runs.run(tmp_path / 'seeds', **FED_SHVR, **trials) == 0
    assert runs.lines(tmp_path / 'seeds' / 'seed_0') == runs.lines(tmp_path / 'whole')


@pytest.mark.parametrize(
    'changes',
    slow_but(
        [
            {'algorithm': 'fedavg', 'local__objective': 'supervised', 'data__client_labels': -1},
            {'algorithm': 'fedprox', 'local__objective': 'supervised', 'data__client_labels': 40, 'k_s': 0},
            {'algorithm': 'fedswitch', 'pre_rounds': 1},
        ],
        {'algorithm': 'fedprox', 'local__objective': 'supervised', 'data__client_labels': 40, 'k_s': 0},
    ),
)
def test_each_way_of_running(tmp_path, changes):
    assert runs.run(tmp_path, **{'rounds': 2} | changes) == 0
    records = runs.records(tmp_path)
    assert [record['loss_local'] is None for record in records] == ['pre_rounds' in changes, False]
    if 'k_s' in changes:
        assert all('loss_supervised' in record and record['loss_supervised'] is None for record in records)
    head = json.loads((tmp_path / 'summary.json').read_text())['headline']
    assert head == ('teacher' if changes['algorithm'] == 'fedswitch' else 'student')


@pytest.mark.slow
def test_the_official_setting(tmp_path):
    words = ('algorithm=fedprox', 'setting=official', 'rounds=2', 'federation.partition=uniform')
    assert launch.main(['launch.py', runs.DIGITS, f'--workdir={tmp_path}', *(f'--config.{w}' for w in words)]) == 0
    for record in runs.records(tmp_path):
        assert (record['k_s'], record['loss_supervised']) == (0, None)
        assert record['loss_local'] > 0
        # 100 clients have 13 or 14 images without labels, some one with: two batches of 10 + 10, of others one of 20
        batches = record['images_per_second'] * record['wall_seconds'] / 20
        assert batches == pytest.approx(round(batches), rel=0.02)
        assert 5 <= round(batches) <= 5 * 2


def test_labels_at_clients_where_none_exist_end_in_one_line(tmp_path, capsys):
    assert runs.run(tmp_path / 'run', algorithm='fedavg', local__objective='supervised') == 2
    error = capsys.readouterr().err
    assert_one_line(error, ['config.data.client_labels=0', "local.objective='supervised'"])
