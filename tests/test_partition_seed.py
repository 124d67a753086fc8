"""`data.partition_seed`: what is drawn from it and what from the seed of the run, and what says which it was."""

import json

import chex
import numpy as np
import pytest

from configs import default
from semisfl_jax import config as config_lib
from semisfl_jax import data
from semisfl_jax.studies import collect, report
from semisfl_jax.training import experiment
from semisfl_jax.training.driver import Driver
from tests import runs, studies_toy
from tests.partitions import SKEWED, config_of, dataset_of
from tests.studies_words import CELLS, study
from tests.trials import assert_lines_close

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
def test_trials_with_one_split_are_single_runs(tmp_path, capsys):
    assert runs.run(tmp_path / 'both', **SAME, seeds='0,1', parallel__trials='loop') == 0
    assert ', one split for all seeds (partition_seed=2020)\n' in capsys.readouterr().out
    for seed in (0, 1):
        assert runs.run(tmp_path / f'{seed}', **SAME, seed=seed) == 0
        together, alone = tmp_path / 'both' / f'seed_{seed}', tmp_path / f'{seed}'
        assert_lines_close(together, alone)
        assert (together / 'partition.npz').read_bytes() == (alone / 'partition.npz').read_bytes()
    assert (tmp_path / '0' / 'partition.npz').read_bytes() == (tmp_path / '1' / 'partition.npz').read_bytes()
    assert runs.lines(tmp_path / '0') != runs.lines(tmp_path / '1')
    summaries = [json.loads((tmp_path / entry / 'summary.json').read_text()) for entry in ('both', '0', '1')]
    assert [entry['partition_seed'] for entry in summaries] == [2020] * 3
    assert len({entry['partition_hash'] for entry in summaries}) == 1


def test_seeds_that_draw_their_own_splits_say_so(tmp_path, capsys):
    assert runs.run(tmp_path, algorithm='supervised_only', rounds=1, seeds='0,1') == 0
    assert ', each seed draws its own split\n' in capsys.readouterr().out
    together, *alone = (
        json.loads((tmp_path / entry / 'summary.json').read_text()) for entry in ('.', 'seed_0', 'seed_1')
    )
    assert [entry['partition_seed'] for entry in alone] == [0, 1]
    assert 'partition_seed' not in together
    assert 'partition_hash' not in together


def test_a_split_from_a_file_says_so(tmp_path, capsys):
    assert runs.run(tmp_path / 'one', algorithm='supervised_only', rounds=1, seed=3) == 0
    assert ', drawn from seed 3\n' in capsys.readouterr().out
    file = tmp_path / 'one' / 'partition.npz'
    assert runs.run(tmp_path / 'two', algorithm='supervised_only', rounds=1, data__partition_file=file) == 0
    assert f', the split of {file}\n' in capsys.readouterr().out
    assert json.loads((tmp_path / 'two' / 'summary.json').read_text())['partition_seed'] == 3


def test_the_settings_of_the_authors_code_fix_the_split():
    assert default.get_config().data.partition_seed == -1
    assert default.get_config('code').data.partition_seed == 2020  # their LabelwisePartitioner(seed=2020)


# --- studies


@pytest.mark.parametrize('name', CELLS)
def test_studies_at_full_scale_have_one_split(name):
    for scale, expected in (('smoke', -1), ('cpu', -1), ('full', 2020)):
        cells = [cell for cell in study(name, scale).cells() if cell.config]
        assert {cell.config.data.partition_seed for cell in cells} == {expected}
        option = '--config.data.partition_seed=2020'
        assert all((option in ' '.join(report.plan.jobs_of(cell)[0].options())) == (scale == 'full') for cell in cells)


def text_of(tmp_path, made):
    results = collect.find(made, tmp_path, {})
    report.write(tmp_path / 'report', made, results)
    return (tmp_path / 'report' / 'report.md').read_text()


def test_reports_say_whose_split_it_was(tmp_path, monkeypatch):
    assert '\nEach seed draws its own split.\n' in text_of(tmp_path, studies_toy.study())
    changes = {'data.partition_seed': 2020}
    fixed = report.plan.with_given(studies_toy.study(), changes)
    assert '\nOne split for all seeds (2020).\n' in text_of(tmp_path, fixed)
    changes = {'data.partition_file': 'here.npz'}
    from_file = report.plan.with_given(studies_toy.study(), changes)
    assert '\nOne split for all seeds (here.npz).\n' in text_of(tmp_path, from_file)
    cells = [studies_toy.cell('semisfl', 1.0), studies_toy.cell('fedswitch', 1.0)]
    cells[1].config.data.partition_seed = 7
    mixed = report.Study('toy', 'smoke', 'A toy', (report.Table('Accuracies', tuple(cells)),))
    text = '\nEach seed draws its own split, in other cells one split for all seeds (7).\n'
    assert text in text_of(tmp_path, mixed)
