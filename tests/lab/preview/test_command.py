"""The preview command: what it prints, and the line that each mistake gets."""

import jax
import pytest

from tests.helpers import runs
from tests.helpers.one_line import assert_one_line

WORDS = runs.words_of('preview')


@pytest.mark.slow
def test_the_command_prints_title_work_and_what_fits(capsys):
    assert runs.command(*WORDS, '--target=cpu') == 0
    printed = capsys.readouterr().out
    for part in ('semisfl, small_cnn on digits: 3 active clients, K_s 8', 'GFLOP', 'fits: all 3', '8 supervised steps'):
        assert part in printed


MISTAKES = {
    '--target=h20': ["--target='h20'", "'h200'"],
    '--target=cpu --devices=-1': ['--devices=-1'],
    '--target=cpu --devices=4': ['config.parallel.devices=4'],
    '--target=cpu --devices=3': ['config.parallel.devices=3'],
    '--target=cpu --workdir=x': ["--workdir='x'"],
    '--target=cpu --config.seeds=0,1': ['config.seeds=(0, 1)', 'config.seed'],
    '--target=cpu --config.data.partition_file=x.npz': ["config.data.partition_file='x.npz'"],
}


@pytest.mark.parametrize('words', MISTAKES)
def test_every_mistake_is_one_line(words, capsys):
    assert runs.command(*WORDS, *words.split()) == 2
    assert_one_line(capsys.readouterr().err, MISTAKES[words])


@pytest.mark.parametrize(
    ('message', 'words'),
    [
        ('INTERNAL: Mosaic failed', ['Mosaic failed', '--target']),
        ('RESOURCE_EXHAUSTED: 20G of 16G', ['20G of 16G', 'client_chunk=3']),
    ],
)
def test_a_refusal_of_the_compiler_is_one_line_with_a_remedy(message, words, capsys, monkeypatch):
    def compile(self, **options):
        raise jax.errors.JaxRuntimeError(message)

    monkeypatch.setattr(jax.stages.Lowered, 'compile', compile)
    assert runs.command(*WORDS, '--target=cpu') == 2
    assert_one_line(capsys.readouterr().err, words)
