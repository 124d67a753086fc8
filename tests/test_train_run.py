"""Whole runs of the command on the digits: what they write, that they repeat, and that they go on."""

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from semisfl_jax.training import metrics, outputs
from tests import runs
from tests.one_line import assert_one_line

LOSSES = ('loss_supervised', 'loss_consistency', 'loss_clustering')


def test_outputs(reference):
    names = {path.name for path in reference.iterdir()}
    files = {'config.json', 'metrics.jsonl', 'partition.npz', 'summary.json'}
    assert names == files | {'.lock', 'checkpoints', 'tensorboard'}
    records = runs.records(reference)
    assert [record['round'] for record in records] == [1, 2, 3, 4]
    assert len({record['k_s'] for record in records}) >= 2
    for index, record in enumerate(records):
        assert all(np.isfinite(record[key]) and record[key] >= 0 for key in LOSSES)
        assert 0 <= record['mask_rate'] <= 1
        assert record['pseudo_label_accuracy'] is None or 0 <= record['pseudo_label_accuracy'] <= 1
        assert record['lr'] == pytest.approx(0.005 + 0.0075 * (1 + np.cos(np.pi * index / 150)), rel=1e-6)
        for model in ('teacher', 'student'):  # shares of the 360 test images
            assert record[f'{model}_accuracy'] * 360 == pytest.approx(round(record[f'{model}_accuracy'] * 360))
        images = record['k_s'] * 4 + 2 * 4 * 3
        assert record['images_per_second'] == pytest.approx(images / record['wall_seconds'], rel=0.02)
        assert not {'fake', 'clients'} & record.keys()
        # Three clients: two bottoms of 4,800 numbers down and one up; of 2 iterations with 4 images two sets of 128
        # features each up, one gradient down.
        assert record['bytes_down'] == (index + 1) * 3 * 4 * (2 * 4_800 + 2 * 4 * 128)
        assert record['bytes_up'] == (index + 1) * 3 * 4 * (4_800 + 2 * 4 * 2 * 128)
    seconds = np.diff([0.0, *(record['simulated_seconds'] for record in records)])
    assert np.all(seconds > 0)
    assert len(set(seconds)) == 4  # every round has a network of its own


def test_summary_follows_from_the_lines(reference):
    records = runs.records(reference)
    accuracy = [record['teacher_accuracy'] for record in records]
    summary = json.loads((reference / 'summary.json').read_text())
    assert (summary['headline'], summary['rounds'], summary['fake']) == ('teacher', 4, False)
    assert (summary['final_accuracy'], summary['best_accuracy']) == (accuracy[-1], max(accuracy))
    assert summary['mean_of_last_10_evaluations'] == pytest.approx(sum(accuracy) / 4)
    assert summary['wall_seconds'] == pytest.approx(sum(record['wall_seconds'] for record in records), abs=1e-3)
    assert [summary[name] for name in metrics.COSTS] == [records[-1][name] for name in metrics.COSTS]
    assert summary['compile_seconds'] > 0
    assert summary['peak_memory_bytes'] > 2**20
    assert summary['versions']['jax'] == jax.__version__
    assert jax.devices()[0].platform in summary['device']


def events(folder):
    """(step, tag, value) of every scalar in the TensorBoard files of a run, and the steps from which they purge."""
    scalars, purges = [], []
    for path in sorted((folder / 'tensorboard').iterdir(), key=lambda path: path.stat().st_mtime_ns):
        content, at = path.read_bytes(), 0
        while at < len(content):  # TFRecord: length, CRC, payload, CRC
            length = int.from_bytes(content[at : at + 8], 'little')
            event = event_pb2.Event.FromString(content[at + 12 : at + 12 + length])
            at += 16 + length
            scalars += [(event.step, value.tag, value.simple_value) for value in event.summary.value]
            purges += [event.step] if event.HasField('session_log') else []
    return scalars, purges


def test_tensorboard_holds_the_same_numbers_before_the_end(reference, tmp_path):
    scalars, _ = events(reference)
    for record in runs.records(reference):
        for key in ('k_s', 'loss_supervised', 'teacher_accuracy', *metrics.COSTS):
            assert (record['round'], key, np.float32(record[key])) in scalars
    written = outputs.open_events(tmp_path / 'tensorboard', 1)
    outputs.log_events(written, {'round': 1, 'a': 1.0})
    assert events(tmp_path)[0] == [(1, 'a', 1.0)]
    written.close()


@pytest.mark.slow
@pytest.mark.skipif(not Path('/dev/full').exists(), reason='needs /dev/full')
def test_a_full_disk_ends_a_run_with_one_line(tmp_path):
    """Neither a thread nor a hook at the exit of Python prints a traceback after it."""
    prelude = """
from tensorboardX import record_writer
record_writer.open_file = lambda path: open('/dev/full', 'wb')"""
    stopped = runs.run_process(tmp_path, prelude, algorithm='supervised_only')
    assert stopped.returncode == 2
    assert_one_line(stopped.stderr, ['No space left on device'])


def test_more_rounds_go_on_from_the_last_in_one_program(reference, tmp_path, capsys, monkeypatch):
    folder, traces = tmp_path / 'run', []
    runs.change_rounds(monkeypatch, lambda round_: lambda *inputs: (traces.append(1), round_(*inputs))[1])
    for rounds in (3, 4):
        assert runs.run(folder, rounds=rounds) == 0
    assert len(traces) == 2, 'one a run, though K_s changes'
    assert 'resuming from the checkpoint of round 3' in capsys.readouterr().out
    assert runs.lines(folder) == runs.lines(reference)
    for name in ('summary.json', 'config.json'):
        assert json.loads((folder / name).read_text())['rounds'] == 4
    assert events(folder)[1][-1] == 4  # TensorBoard hides what an earlier process wrote of round 4 and later


@pytest.mark.as_for_users
def test_images_on_the_host_and_other_costs_change_no_other_byte(reference, tmp_path):
    assert runs.run(tmp_path / 'host', data__residency='host') == 0
    assert runs.lines(tmp_path / 'host') == runs.lines(reference)
    assert runs.run(tmp_path / 'slow', cost__client_out=(0.1, 0.2)) == 0
    for lines in zip(runs.lines(tmp_path / 'slow'), runs.lines(reference), strict=True):
        slow, plain = map(json.loads, lines)
        assert slow.pop('simulated_seconds') > 3 * plain.pop('simulated_seconds')
        assert slow == plain


def test_without_clients_on_made_up_data_every_output_is_marked(tmp_path, capsys):
    assert runs.run(tmp_path, algorithm='supervised_only', rounds=2, data__fake=True) == 0
    for record in runs.records(tmp_path):
        assert record['fake'] is True
        assert record['loss_supervised'] > 0
        assert record['loss_consistency'] is record['loss_clustering'] is None
        assert record['images_per_second'] == pytest.approx(8 * 4 / record['wall_seconds'], rel=0.02)
    summary = json.loads((tmp_path / 'summary.json').read_text())
    assert (summary['headline'], summary['fake']) == ('student', True)
    assert json.loads((tmp_path / 'config.json').read_text())['data']['fake'] is True
    assert all(tag.startswith('FAKE/') for _, tag, _ in events(tmp_path)[0])
    printed = capsys.readouterr().out
    assert printed.startswith('*** FAKE DATA')
    assert 'accuracy on FAKE data' in printed
