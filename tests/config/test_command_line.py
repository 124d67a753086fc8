"""The command: its help, one clear line for every mistake, its folder, and files of its user."""

import os
import sys

import pytest

import launch
from semisfl_jax.config import command_line
from tests.helpers import runs
from tests.helpers.one_line import assert_one_line


def test_the_help_lists_configurations_and_explains_keys(capsys):
    assert launch.main(['launch.py', '--help']) == 0
    text = capsys.readouterr().out
    for path in (runs.ROOT / 'configs').glob('*.py'):
        assert (f'configs/{path.name}' in text) == (path.stem not in ('__init__', 'default'))
    for word in ('--workdir', '--config.KEY=VALUE', 'metrics.jsonl', 'checkpoints', 'Ctrl-C'):
        assert word in text
    assert launch.main(['launch.py', '-h', 'federation.alpha', 'uda']) == 0
    text = capsys.readouterr().out
    assert all(f'config.{word}' in text for word in ('federation.alpha', 'uda.tsa'))
    assert launch.main(['launch.py', '--help', 'federation.num_clients', 'lr_rounds', '--config=digits']) == 0
    text = capsys.readouterr().out
    assert 'config.federation.num_clients = 30 (in digits: 10)\n' in text  # configs/digits.py
    assert 'config.lr_rounds = 1000 (in digits: ' in text
    assert launch.main(['launch.py', '--help', 'momentun']) == 2
    assert_one_line(capsys.readouterr().err, ['config.momentun', 'config.momentum'])
    assert launch.main(['launch.py', '--config.seed=1']) == 2
    assert_one_line(capsys.readouterr().err, ['python launch.py --config=digits'])


def test_flags_of_a_tool_are_written_with_a_sign_or_a_blank():
    kinds = {'last': int, 'csv': str, 'only': tuple}
    values, words = command_line.read_flags(['a', '--last=5', '--only', 'x,y', '-z'], kinds)
    assert (values, words) == ({'last': 5, 'only': ('x', 'y')}, ['a', '-z'])


def test_overrides_arrive_with_their_type():
    words = '--workdir=x/y --config.lr=1e-3 --config.federation.num_active 4 --config.nesterov=false'
    words += ' --noconfig.ema_warmup --config.model.split_index=1'
    command = command_line.parse(['launch.py', runs.DIGITS, *words.split()])
    config = command.config
    assert (command.name, command.workdir, config.is_locked) == ('digits', 'x/y', True)
    assert (config.lr, config.federation.num_active, config.model.split_index) == (0.001, 4, 1)
    assert (config.nesterov, config.ema_warmup) == (False, False)
    assert command.given['federation.num_active'] == 4


TUPLES = {  # as people type them
    'seeds=0,1,2': (0, 1, 2),
    'seeds=(0, 1)': (0, 1),
    'seeds=[3]': (3,),
    'seeds=3': (3,),
    'seeds=2-5': (2, 3, 4, 5),
    'cost.client_out=0.5,2': (0.5, 2),
    'cost.devices=jetson_nano,jetson_tx2': ('jetson_nano', 'jetson_tx2'),
    "cost.devices=('jetson_nano',)": ('jetson_nano',),
    'data.tasks=()': (),
    'data.tasks=depth': ('depth',),
}


@pytest.mark.parametrize('word', TUPLES)
def test_several_values_are_a_tuple(word):
    key = word.partition('=')[0]
    assert command_line.parse(['launch.py', '--config=digits', f'--config.{word}']).given == {key: TUPLES[word]}


@pytest.mark.parametrize(('word', 'told'), [('seeds=10', True), ('seeds=1', False), ('seeds=10,', False)])
def test_one_number_as_seeds_is_told_to_be_one_seed(word, told, caplog):
    command_line.parse(['launch.py', '--config=digits', f'--config.{word}'])
    assert [message.endswith('for 10 seeds write --config.seeds=0-9') for message in caplog.messages] == [True] * told


@pytest.mark.parametrize(
    ('word', 'names'),
    [
        ('study_rows=SemiSFL, code', ('SemiSFL, code',)),
        ('study_rows=250', ('250',)),
        ("study_rows='SemiSFL','SemiSFL, code'", ('SemiSFL', 'SemiSFL, code')),
        ("study_columns='Dir(0.1)',", ('Dir(0.1)',)),
    ],
)
def test_names_of_a_study_may_have_commas(word, names):
    command = command_line.parse(['launch.py', '--config=studies/table4:smoke', f'--config.{word}'], studies=True)
    assert command.given == {word.partition('=')[0]: names}


def test_a_flag_may_be_a_word_and_its_value_the_next_and_the_last_counts():
    words = '--config.lr=0.1 --config.data.client_labels -1 --config digits --config.lr 0.3 --config.ema_warmup'
    command = command_line.parse(['launch.py', *words.split()])
    assert command.given == {'lr': 0.3, 'data.client_labels': -1, 'ema_warmup': True}


def test_a_configuration_imports_what_lies_beside_it(tmp_path, monkeypatch):
    """And a shell leaves ~ as it is in --config=~/x.py."""
    monkeypatch.setattr(sys, 'path', list(sys.path))
    monkeypatch.setenv('HOME', str(tmp_path))
    (tmp_path / 'code_of_mine.py').write_text('from configs.digits import get_config\n')
    (tmp_path / 'digits_of_mine.py').write_text('from code_of_mine import get_config\n')
    assert command_line.parse(['launch.py', '--config=~/digits_of_mine.py']).config.data.name == 'digits'


LONG = 'y' * 5000
MISTAKES = {  # what is added to the command line of a tiny digits run -> what the one line names
    '--wrkdir=x': 'wrkdir',
    'digits': "'digits'",
    '--config.seed': '--config.seed',
    '--config.seed=one': '--config.seed=one',
    '--config.num_labeled=1': 'config.num_labeled config.data.num_labeled',
    '--config.data=x': 'config.data config.data.',
    '--config.algorithm=FedAvg': "'FedAvg' 'fedavg'",
    '--config.cost.devices=jetson_nano,jetson_tx3': "'jetson_tx3' 'jetson_tx2'",
    '--config.nesterov=maybe': '--config.nesterov=maybe False',
    '--config.lr=': '--config.lr= number',
    '--config.data.num_labeled=2000': '2000 1437',
    '--config.model.name=vgg13': 'vgg13 8x8 data.image_size',
    '--config.data.name=svhn_cropped --config.data.data_dir={tmp}': 'svhn',
    '--config.data.partition_file={run}/partition.npz --config.data.name=mnist --config.data.fake=True': 'digits mnist',
    '--config={run}/config.json': '--workdir={run}',
    f'{runs.DIGITS}:papre': "'papre' 'paper'",
    '--config=configs/digit.py:code': 'configs/digit.py digits',
    '--config=table4': 'table4 studies/table4',
    f'--config={runs.ROOT}/configs/studies/table4.py:smoek': "'smoek' 'smoke'",
    f'--config.algorithm={LONG}': 'config.algorithm',
    f'--workdir=/proc/{"/".join([LONG[:200]] * 15)}': '/proc',
    '--workdir=/proc/semisfl': '/proc/semisfl --workdir',  # looks writable to root, and is not
    f'--workdir=/tmp/{"a" * 300}': 'File name too long',
    '--workdir=~nobody-of-this-name/x': '~nobody-of-this-name',
}


@pytest.mark.parametrize('mistake', MISTAKES, ids=lambda words: words[-40:])
def test_a_mistake_ends_in_one_line_and_an_untouched_folder(mistake, reference, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(runs.ROOT)
    added, named = (words.format(tmp=tmp_path, run=reference).split() for words in (mistake, MISTAKES[mistake]))
    workdir = tmp_path / 'run'
    assert launch.main(['launch.py', *runs.words(workdir), *(added or [mistake])]) == 2
    error = capsys.readouterr().err
    assert_one_line(error, named)
    assert len(error) < 1100  # long values are shortened
    assert not workdir.exists()


def test_a_folder_that_cannot_be_written_to(tmp_path, capsys, monkeypatch):
    (tmp_path / 'file').write_text('text')
    folder = tmp_path / 'folder'
    folder.mkdir()
    folder.chmod(0o555)
    if os.access(folder, os.W_OK):  # root may write anywhere: see the folder as anybody else does
        real = os.access
        monkeypatch.setattr(os, 'access', lambda path, mode: real(path, mode) and str(path) != str(folder))
    for workdir, where in ((tmp_path / 'file' / 'run', tmp_path / 'file'), (folder / 'run', folder), (folder, folder)):
        assert runs.run(workdir) == 2
        assert_one_line(capsys.readouterr().err, [str(where)])
    assert not list(folder.iterdir())
