"""`data.partition_seed`: what is drawn from it and what from the seed of the run, and what says which it was."""

import json

import chex
import numpy as np
import pytest

from configs import default
from semisfl_jax import config as config_lib
from semisfl_jax import data
from semisfl_jax.training import experiment, load
from semisfl_jax.training.driver import Driver
from tests.helpers import runs
from tests.helpers.partitions import SKEWED, config_of, dataset_of

SAME = {'data__partition_seed': 2020, 'algorithm': 'fedavg', 'rounds': 1}


def drawn(**changes):
    return data.make_partition(dataset_of(SKEWED), config_of(partition='dirichlet', client_labels=40, **changes))


def test_the_partition_seed_takes_the_place_of_the_seed_in_the_split():
    fixed = [drawn(seed=seed, partition_seed=2020) for seed in (0, 1)]
    of_that_run, of_another = drawn(seed=2020), drawn(seed=0)
    assert {partition.content_hash for partition in fixed} == {of_that_run.content_hash}
    assert [partition.settings['seed'] for partition in (*fixed, of_another)] == [2020, 2020, 0]
    assert not np.array_equal(fixed[0].server_index, of_another.server_index)
    assert drawn(seed=5, partition_seed=0).content_hash == of_another.content_hash  # 0 is a seed like any other


@pytest.mark.slow
def test_trials_share_the_split_and_nothing_else(tmp_path):
    config = config_lib.resolve(runs.config(**SAME, seeds='0,1'))
    built = experiment.build_trials(config_lib.trials(config))
    assert built[0].partition.content_hash == built[1].partition.content_hash
    federation, cohorts, _ = next(Driver(built, 'loop').inputs(0))
    assert federation.server_images.shape[0] == len(built[0].dataset.train_images)  # one copy of all images, as ever
    for name in ('server_index', 'index', 'size'):
        first, second = np.asarray(getattr(federation, name))
        np.testing.assert_array_equal(first, second)
    other = [experiment.build(config_lib.resolve(runs.config(algorithm='fedavg', seed=seed))) for seed in (0, 1)]
    for trial, alone in zip(built, other, strict=True):  # what is drawn from the seed of the run is what it was
        chex.assert_trees_all_equal(*(x.algorithm.init(x.key).student for x in (trial, alone)))
    alone = [next(Driver([trial], 'loop').inputs(0))[1].ids.tolist() for trial in other]
    assert [ids.tolist() for ids in cohorts.ids] == alone


@pytest.mark.slow
def test_summaries_say_whose_split_it_was(tmp_path):
    """Of each trial, its own; of trials together, none; from a file, what the file says."""
    config = runs.config(algorithm='supervised_only', seed=3)
    data.save(data.make_partition(data.load(config.data), config), tmp_path / 'p.npz')
    changes = {'algorithm': 'supervised_only', 'rounds': 1}
    assert runs.run(tmp_path / 'file', **changes, data__partition_file=tmp_path / 'p.npz') == 0
    (tmp_path / 'p.npz').unlink()
    assert load.experiment(tmp_path / 'file').partition.settings['seed'] == 3  # of its own copy
    assert runs.run(tmp_path / 'two', **changes, seeds='0,1') == 0
    of_file, together, *alone = (
        json.loads((tmp_path / entry / 'summary.json').read_text())
        for entry in ('file', 'two', 'two/seed_0', 'two/seed_1')
    )
    assert [entry['partition_seed'] for entry in (of_file, *alone)] == [3, 0, 1]
    assert not {'partition_seed', 'partition_hash'} & set(together)


def test_the_settings_of_the_authors_code_fix_the_split():
    assert default.get_config().data.partition_seed == -1
    assert default.get_config('code').data.partition_seed == 2020  # their LabelwisePartitioner(seed=2020)
