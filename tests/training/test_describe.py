"""The lines that describe a run before it begins."""

from pathlib import Path

import jax

import launch
import semisfl_jax as sfl
from semisfl_jax import config as config_lib
from semisfl_jax.training import experiment
from semisfl_jax.training.describe import describe

ROOT = Path(launch.__file__).parent


def test_a_run_is_described_as_the_page_shows_it():
    shown = (ROOT / 'docs/first-run.md').read_text()
    (trial,) = experiment.build_trials([config_lib.resolve(sfl.get_config('digits'))])
    assert '\n'.join(describe([trial])[:4]) in shown
    sizes = [len(rows) for rows in trial.partition.client_index]
    assert (min(sizes), max(sizes), sum(sizes)) == (57, 247, 1437 - 40)
    assert sum(leaf.size for leaf in jax.tree.leaves(trial.state_shapes.student)) == 13_706 + 33_024  # its head


def test_classes_without_a_label_are_a_warning():
    """Five labels are of five classes at most; the seed's are counted here again."""
    (trial,) = experiment.build_trials([config_lib.resolve(sfl.get_config('digits', data__num_labeled=5))])
    classes = {*trial.dataset.train_labels[trial.partition.server_index].tolist()}
    warning = f'5 labeled images at the server (WARNING: {10 - len(classes)} of 10 classes have no label); 10 clients'
    assert warning in describe([trial])[2]
