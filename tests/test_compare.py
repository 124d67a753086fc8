"""The comparison of runs against arithmetic by hand."""

import csv
import itertools
import json
import math

import pytest

from semisfl_jax import compare
from semisfl_jax.training.metrics import mean_and_error
from tests.one_line import assert_one_line


def write(folder, seed, algorithm, teacher, student, headline):
    folder.mkdir()
    config = {
        'seed': seed,
        'algorithm': algorithm,
        'rounds': len(teacher),
        'data': {'name': 'digits', 'data_dir': str(folder)},
    }
    (folder / 'config.json').write_text(json.dumps(config))
    (folder / 'summary.json').write_text(json.dumps({'rounds': len(teacher), 'headline': headline}))
    lines = [{'round': i, 'teacher_accuracy': t, 'student_accuracy': student} for i, t in enumerate(teacher)]
    (folder / 'metrics.jsonl').write_text(''.join(json.dumps(line) + '\n' for line in lines))
    return folder


def test_groups_means_errors_and_paired_differences(tmp_path, capsys):
    folders = []
    for seed, (ours, theirs) in enumerate([(0.90, 0.80), (0.92, 0.85)]):
        # the first two of twelve evaluations do not count
        folders.append(write(tmp_path / f'a{seed}', seed, 'semisfl', [0.1, 0.1] + [ours] * 10, 0.5, 'teacher'))
        folders.append(write(tmp_path / f'b{seed}', seed, 'supervised_only', [0.3] * 12, theirs, 'student'))
    assert compare.main(['compare', *map(str, folders)]) == 0
    printed = capsys.readouterr().out
    # semisfl: mean of 90 and 92, standard deviation sqrt(2), over sqrt(2): 1
    assert '* algorithm=semisfl: teacher 91.00 ± 1.00 % (2 seeds)' in printed
    assert '  algorithm=semisfl: student 50.00 ± 0.00 % (2 seeds)' in printed
    # 80 and 85: 82.5 ± 5 / 2
    assert '* algorithm=supervised_only: student 82.50 ± 2.50 % (2 seeds)' in printed
    # differences 10 and 7: 8.5 ± 3 / 2
    assert 'difference [algorithm=semisfl] - [algorithm=supervised_only]: +8.50 ± 1.50 (2 seeds, paired)' in printed


def test_one_seed_makes_no_difference(tmp_path, capsys):
    folders = [
        write(tmp_path / name, seed, name, [0.5], 0.5, 'teacher')
        for name, seed in (('semisfl', 0), ('fedswitch_sl', 0), ('splitfed', 1))
    ]
    assert compare.main(['compare', *map(str, folders)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith('no difference')]
    assert [line.rpartition(': ')[2] for line in lines] == [
        'they share one seed, and it takes two',
        *['they share no seed, and it takes two'] * 2,
    ]


def test_a_model_between_server_and_clients(tmp_path, capsys):
    """Two evaluations of one round, and no teacher."""
    folder = write(tmp_path / 'a', 0, 'semifl', [0.5], 0.5, 'student')
    line = {'round': 1, 'student_accuracy': 0.5, 'after_server_accuracy': 0.75, 'supervised_accuracy': 0.25}
    (folder / 'metrics.jsonl').write_text(json.dumps(line) + '\n')
    assert compare.main(['compare', str(folder)]) == 0
    first, second, few, _ = capsys.readouterr().out.splitlines()
    assert few == 'semifl: fewer than 10 evaluations, the mean is of 1'
    assert first.startswith('  semifl: after_server 75.00')
    assert second.startswith('* semifl: student 50.00')


def test_a_score_that_is_never_defined_makes_no_difference(tmp_path, capsys):
    """As that of a task of which no test image has anything."""
    folders = []
    for (name, value), seed in itertools.product((('m_fed', 0.5), ('mfed_fl', None)), (0, 1)):
        folder = write(tmp_path / f'{name}{seed}', seed, name, [0.5], 0.5, 'keypoints')
        line = {'round': 1, 'keypoints_ap': value}
        (folder / 'metrics.jsonl').write_text(json.dumps(line) + '\n')
        summary = {'rounds': 1, 'headline': 'keypoints', 'final_ap': value}
        (folder / 'summary.json').write_text(json.dumps(summary))
        folders.append(folder)
    assert compare.main(['compare', *map(str, folders)]) == 0
    printed = capsys.readouterr().out
    assert '* algorithm=m_fed: keypoints AP 50.00 ± 0.00 % (2 seeds)' in printed
    assert 'no difference [algorithm=m_fed] - [algorithm=mfed_fl]: keypoints_ap is undefined' in printed


def settle(folder, **settings):
    """Adds flat keys to the configuration of a run."""
    config = json.loads((folder / 'config.json').read_text())
    for key, value in settings.items():
        group, _, name = key.rpartition('__')
        (config.setdefault(group, {}) if group else config)[name] = value
    (folder / 'config.json').write_text(json.dumps(config))
    return folder


def test_what_auto_means_for_a_method_is_in_no_label(tmp_path, capsys):
    """SemiSFL adapts K_s and averages uniformly, FedAvg does neither; a value that is not the method's own is named."""
    fedavg = {'k_s_rule': 'fixed', 'local__weighting': 'samples'}
    folders = [
        settle(
            write(tmp_path / 'a', 0, 'semisfl', [0.5], 0.5, 'teacher'), k_s_rule='paper', local__weighting='uniform'
        ),
        settle(write(tmp_path / 'b', 0, 'fedavg', [0.5], 0.5, 'student'), **fedavg),
    ]
    assert compare.main(['compare', *map(str, folders)]) == 0
    assert '* algorithm=semisfl: teacher 50.00 % (1 seed)' in capsys.readouterr().out
    other = settle(
        write(tmp_path / 'c', 0, 'fedavg', [0.5], 0.5, 'student'), **fedavg | {'local__weighting': 'uniform'}
    )
    assert compare.main(['compare', *map(str, [*folders, other])]) == 0
    printed = capsys.readouterr().out
    assert '* algorithm=fedavg, local.weighting=samples: student' in printed
    assert '* algorithm=fedavg, local.weighting=uniform: student' in printed


def test_the_numbers_in_a_file(tmp_path, capsys):
    folders = []
    for seed, (ours, theirs) in enumerate([(0.90, 0.80), (0.92, 0.85)]):
        folders.append(write(tmp_path / f'a{seed}', seed, 'semisfl', [ours], 0.5, 'teacher'))
        folders.append(write(tmp_path / f'b{seed}', seed, 'supervised_only', [0.3], theirs, 'student'))
    assert compare.main(['compare', f'--csv={tmp_path}/numbers.csv', *map(str, folders)]) == 0
    rows = list(csv.DictReader((tmp_path / 'numbers.csv').read_text().splitlines()))
    assert [(row['group'], row['minus'], row['key'], row['split'], row['seeds']) for row in rows] == [
        ('algorithm=semisfl', '', 'student_accuracy', 'test', '2'),
        ('algorithm=semisfl', '', 'teacher_accuracy', 'test', '2'),
        ('algorithm=supervised_only', '', 'student_accuracy', 'test', '2'),
        ('algorithm=supervised_only', '', 'teacher_accuracy', 'test', '2'),
        ('algorithm=semisfl', 'algorithm=supervised_only', 'teacher_accuracy', 'test', '2'),
    ]
    # as in test_groups_means_errors_and_paired_differences
    assert [float(row['mean']) for row in rows] == pytest.approx([50, 91, 82.5, 30, 8.5])
    assert [float(row['standard_error']) for row in rows] == pytest.approx([0, 1, 2.5, 0, 1.5], abs=1e-9)
    assert compare.main(['compare', f'--csv={tmp_path}', str(folders[0])]) == 2
    assert_one_line(capsys.readouterr().err, ['choose another --csv'])


def test_last_evaluations(tmp_path, capsys):
    folder = write(tmp_path / 'a', 0, 'semisfl', [0.1, 0.2, 0.4, 0.6], 0.5, 'teacher')
    assert compare.main(['compare', '--last=2', str(folder)]) == 0
    assert 'teacher 50.00 % (1 seed)' in capsys.readouterr().out
    assert compare.main(['compare', '--last=0', str(folder)]) == 2
    assert capsys.readouterr().err.startswith('error: ')


def test_a_key_that_an_older_run_lacks_makes_no_group(tmp_path, capsys):
    folders = [write(tmp_path / f'a{seed}', seed, 'semisfl', [0.5], 0.5, 'teacher') for seed in (0, 1)]
    config = json.loads((folders[1] / 'config.json').read_text())
    (folders[1] / 'config.json').write_text(json.dumps(config | {'new': 1}))
    assert compare.main(['compare', *map(str, folders)]) == 0
    printed = capsys.readouterr().out
    assert '* semisfl: teacher 50.00 ± 0.00 % (2 seeds)' in printed
    assert 'ignored differences in keys that some of the runs lack: new' in printed


def test_one_run_has_no_error():
    mean, error = mean_and_error([3.0])
    assert mean == 3.0
    assert math.isnan(error)


@pytest.mark.parametrize('broken', ['nothing', 'twice'])
def test_mistakes_end_in_one_line(tmp_path, capsys, broken):
    folder = write(tmp_path / 'a', 0, 'semisfl', [0.5], 0.5, 'teacher')
    arguments = [str(folder), str(folder)] if broken == 'twice' else [str(tmp_path)]
    assert compare.main(['compare', *arguments]) == 2
    captured = capsys.readouterr().err
    assert captured.startswith('error: ')
    assert captured.count('\n') == 1


def test_no_words_at_all_are_a_mistake_and_the_help_comes_along(capsys):
    assert compare.main(['compare']) == 2
    out, error = capsys.readouterr()
    assert out.strip() == compare.__doc__.strip()
    assert error == 'error: no run to compare; give the folders of runs\n'


def test_flags_without_a_run_are_a_mistake(capsys):
    assert compare.main(['compare', '--last=5']) == 2
    assert capsys.readouterr().err == 'error: no run to compare; give the folders of runs\n'
    assert compare.main(['compare', '--lats=5', 'folder']) == 2
    assert capsys.readouterr().err.startswith("error: Unknown command line flag 'lats'")


@pytest.mark.parametrize('value', ['x', '0', '1.5'])
def test_a_number_of_evaluations_that_is_none_is_one_line(capsys, value):
    assert compare.main(['compare', f'--last={value}', 'folder']) == 2
    assert_one_line(
        capsys.readouterr().err, [f'--last={value}: must be a number of evaluations, 1 or more (see --help)']
    )


def dense(folder, seed, algorithm, value, depth):
    """A run with the score `value`, beside a constant prediction with `depth` and all objects with 0.5."""
    write(folder, seed, algorithm, [0.5], 0.5, 'depth')
    trivially = {'constant': {'depth_rmse': depth}, 'objects': {'saliency_iou': 0.5}}
    summary = {'rounds': 1, 'headline': 'depth', 'final_rmse': value, 'trivial_scores': trivially}
    (folder / 'summary.json').write_text(json.dumps(summary))
    (folder / 'metrics.jsonl').write_text(json.dumps({'round': 1, 'depth_rmse': value}) + '\n')
    return str(folder)


def test_trivial_predictions_stand_beside_those_of_models(tmp_path, capsys):
    """Depths of 0.3 and 0.4: a mean of 0.35, and a deviation of 0.1 / sqrt(2) over sqrt(2)."""
    table = [(name, seed) for name in ('m_fed', 'mfed_fl') for seed in (0, 1)]
    folders = [dense(tmp_path / f'{name}{seed}', seed, name, 0.2, 0.3 + seed / 10) for name, seed in table]
    file = tmp_path / 'table.csv'
    assert compare.main(['compare', *folders, f'--csv={file}']) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        '* algorithm=m_fed: depth RMSE 0.2000 ± 0.0000 (2 seeds)',
        '* algorithm=mfed_fl: depth RMSE 0.2000 ± 0.0000 (2 seeds)',
        '  constant prediction: depth RMSE 0.3500 ± 0.0500 (2 seeds)',
        '  all objects salient: saliency IoU at the best threshold 50.00 ± 0.00 % (2 seeds)',
    ]
    rows = {row['group']: row['mean'] for row in csv.DictReader(file.read_text().splitlines()) if not row['minus']}
    assert float(rows['constant prediction']) == pytest.approx(0.35)
    other = dense(tmp_path / 'other', 0, 'mfed_local', 0.2, 0.9)
    assert compare.main(['compare', *folders, other]) == 0
    out = capsys.readouterr().out
    assert '  constant prediction of [algorithm=m_fed], [algorithm=mfed_fl]: depth RMSE 0.3500 ± 0.0500' in out
    assert '  constant prediction of [algorithm=mfed_local]: depth RMSE 0.9000 (1 seed)' in out
