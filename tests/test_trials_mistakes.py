"""Seeds that a run cannot have, and folders of other seeds, each one line."""

import pytest

import launch
from tests import runs
from tests.one_line import assert_one_line

MISTAKES = {
    'twice': (['--config.seeds=0,1,0'], ['config.seeds', '0 more than once']),
    'both': (['--config.seeds=0,1', '--config.seed=3'], ['config.seed=3', 'config.seeds=(0, 1)']),
    'below 0': (['--config.seeds=0,-1'], ['config.seeds', '-1']),
    'too large': (['--config.seeds=4294967296'], ['4294967296']),
    'words': (['--config.seeds=all'], ["'all'", '--config.seeds=0,1,2']),
    'a fraction': (['--config.seeds=(0,1.5)'], ['1.5']),
    'nothing': (['--config.seeds='], ["''"]),
    'unknown map': (['--config.seeds=0,1', '--config.parallel.trials=pmap'], ['parallel.trials', "'pmap'", 'vmap']),
}


@pytest.mark.parametrize('mistake', MISTAKES)
def test_a_mistake_ends_in_one_line_and_an_untouched_folder(mistake, tmp_path, capsys):
    added, words = MISTAKES[mistake]
    assert launch.main(['launch.py', *runs.words(tmp_path / 'run'), *added]) == 2
    assert_one_line(capsys.readouterr().err, words)
    assert not (tmp_path / 'run').exists()
