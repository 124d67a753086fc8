"""The descriptions of metrics, in the help and in docs/metrics.md."""

import dataclasses
import json

from semisfl_jax import algorithms, tasks
from semisfl_jax.config import metric_help
from tests.helpers.one_pass import METHOD
from tests.helpers.runs import ROOT


def test_every_metric_of_the_paper_run_is_described():
    lines = (ROOT / 'results' / 'cifar10-h100' / 'metrics.jsonl').read_text().splitlines()
    keys = {key for line in lines for key in json.loads(line)}
    assert {'teacher_accuracy', 'loss_clustering', 'wall_seconds'} < keys
    assert keys <= metric_help.by_key().keys()


def test_of_every_dense_task_loss_score_and_best_client_are_described():
    scores = {'semseg': 'miou', 'parts': 'miou', 'saliency': 'iou', 'edges': 'odsf', 'depth': 'rmse', 'stuff': 'miou'}
    scores |= {'keypoints': 'ap', 'instances': 'mask_ap', 'panoptic': 'pq', 'persons': 'oks_ap'}
    assert scores.keys() == {*tasks.DENSE}
    wanted = {f'{task}_{score}{best}' for task, score in scores.items() for best in ('', '_best')}
    assert wanted | {f'{task}_loss' for task in scores} <= metric_help.by_key().keys()


def test_a_key_has_one_description_and_methods_that_share_it_are_named_together(monkeypatch):
    metrics = [*metric_help.COMMON, *metric_help.of_methods()]
    assert len([key for metric in metrics for key in metric.keys]) == len(metric_help.by_key())
    for name in ('one', 'two'):
        monkeypatch.setitem(algorithms.METHODS, name, dataclasses.replace(METHOD, metrics={'spread': 'of clients'}))
    assert metric_help.by_key()['spread'] == (('spread',), '`one`, `two`', 'of clients')
