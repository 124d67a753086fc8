"""Data sets of tensorflow-datasets that are not there, or cannot be read: prepared, or one clear line."""

import numpy as np
import pytest

from semisfl_jax import data
from semisfl_jax.core.errors import UserError
from semisfl_jax.data import tfds_source
from tests.tfds_files import classes, options_of, pixels, tfds, write


def test_a_set_that_is_not_prepared_says_how(tmp_path, monkeypatch):
    monkeypatch.setattr(tfds_source.importlib.util, 'find_spec', lambda name: None)
    with pytest.raises(UserError) as caught:
        data.load(options_of(tmp_path, name='stl10'))
    message = str(caught.value)
    assert '\n' not in message
    for part in ("'stl10'", str(tmp_path / 'tfds' / 'stl10'), "pip install '.[prepare]'", '--config.data.data_dir'):
        assert part in message


def test_the_directory_is_data_dir_then_tfds_data_dir(tmp_path, monkeypatch):
    monkeypatch.setattr(tfds_source.importlib.util, 'find_spec', lambda name: None)
    monkeypatch.setenv('TFDS_DATA_DIR', str(tmp_path / 'environment'))
    with pytest.raises(UserError, match=str(tmp_path / 'tfds' / 'mnist')):
        data.load(options_of(tmp_path, name='mnist'))
    options = options_of(tmp_path, name='mnist')
    options.data_dir = ''
    with pytest.raises(UserError, match=str(tmp_path / 'environment' / 'mnist')):
        data.load(options)


@pytest.fixture
def hidden(monkeypatch):
    """As if TensorFlow were installed; notes that it was kept off the accelerators."""
    calls = []
    monkeypatch.setattr(tfds_source.importlib.util, 'find_spec', lambda name: name == 'tensorflow')
    monkeypatch.setattr(tfds_source, '_hide_accelerators', lambda: calls.append('all'))
    return calls


def test_with_tensorflow_a_set_is_prepared(tmp_path, monkeypatch, hidden):
    """Preparing itself is TFDS's; here it is replaced by writing the files."""
    images, asked = pixels(12, (28, 28, 1)), []

    def prepare(builder, file_format):
        asked.append((builder.name, file_format))
        splits = {'train': (images, np.arange(12) % 10), 'test': (images[:4], np.arange(4))}
        write(tmp_path, 'mnist', str(builder.version), splits, (28, 28, 1), classes(10))

    monkeypatch.setattr(tfds.core.DatasetBuilder, 'download_and_prepare', prepare)
    loaded = data.load(options_of(tmp_path, name='mnist'))
    assert asked == [('mnist', 'array_record')]
    assert hidden == ['all']
    np.testing.assert_array_equal(loaded.train_images, images)


@pytest.mark.usefixtures('hidden')
def test_a_failed_preparation_is_one_clear_line(tmp_path, monkeypatch):
    def prepare(builder, file_format):
        raise AssertionError('Manual directory is empty.\nDownload it.')

    monkeypatch.setattr(tfds.core.DatasetBuilder, 'download_and_prepare', prepare)
    with pytest.raises(UserError, match=r'cannot be prepared in .*: Manual directory is empty.$'):
        data.load(options_of(tmp_path, name='mnist'))


@pytest.mark.parametrize(
    ('name', 'message'),
    [
        ('cifra10', "unknown data set 'cifra10'.*did you mean 'cifar10'"),
        ('digts', "did you mean 'digits'"),
        ('qqqqqqqqq', "unknown data set 'qqqqqqqqq'"),
        ('', r"config\.data\.name='' cannot be the name of a data set; write it as 'mnist', "),
        ('../x', r"config\.data\.name='\.\./x' cannot be the name of a data set; write it as 'mnist', "),
        ('a b/c', 'a b/c'),
        ('emnist/leters', r"'emnist/leters' cannot be opened .* leters not found .*; correct config\.data\.name"),
        ('mnist:9.9.9', r'cannot be loaded at version 9\.9\.9, only: .*; correct config\.data\.name$'),
    ],
)
def test_unknown_names_are_one_clear_line(tmp_path, name, message, capfd):
    with pytest.raises(UserError, match=message) as caught:
        data.load(options_of(tmp_path, name=name))
    assert '\n' not in str(caught.value)
    assert capfd.readouterr().out == ''


def test_sets_of_another_kind_are_refused(tmp_path):
    splits = {'train': (pixels(4, (6, 6, 3)), np.arange(4))}
    write(tmp_path, 'regression', '1.0.0', splits, (6, 6, 3), tfds.features.Scalar(np.int64))
    with pytest.raises(UserError, match='is not an image-classification set'):
        data.load(options_of(tmp_path, name='regression'))


def test_sets_without_training_data_are_refused(tmp_path):
    splits = {'test': (pixels(4, (6, 6, 3)), np.arange(4))}
    write(tmp_path, 'only_test', '1.0.0', splits, (6, 6, 3), classes(4))
    with pytest.raises(UserError, match="no split 'train'"):
        data.load(options_of(tmp_path, name='only_test'))


def test_another_file_format_is_refused(tmp_path):
    write(tmp_path, 'records', '1.0.0', {'train': (pixels(4, (6, 6, 3)), np.arange(4))}, (6, 6, 3), classes(4))
    info = tmp_path / 'tfds/records/1.0.0/dataset_info.json'
    info.write_text(info.read_text().replace('"fileFormat": "array_record"', '"fileFormat": "tfrecord"'))
    with pytest.raises(UserError, match='not in the array_record format'):
        data.load(options_of(tmp_path, name='records'))
