"""configs/fedavg.py: the models and the protocol of FedAvg's paper, and its command on digits."""

import jax
import numpy as np
import pytest

from configs import fedavg
from semisfl_jax import config as config_lib
from semisfl_jax import data, models
from tests.helpers.architectures import count


@pytest.mark.parametrize(
    ('name', 'parameters'),
    [
        # "two 5x5 convolution layers (32 and 64 channels, each followed with 2x2 max pooling), a fully connected layer
        # with 512 units, and a final softmax output layer (1,663,370 total parameters)"
        ('mcmahan_cnn', 1_663_370),
        ('mcmahan_2nn', 199_210),
    ],
)
def test_the_models_have_the_parameters_of_the_paper(name, parameters):
    variables = jax.eval_shape(models.build(name, 10, (28, 28, 1)).init, jax.random.key(0))
    assert count(variables.bottom) + count(variables.top) == parameters


def test_the_protocol_of_the_paper():
    """100 clients of 600 images, none at the server; ten a round; two digits each in the other split."""
    config = fedavg.get_config()
    config_lib.check(config)
    labels = np.repeat(np.arange(10), 6000).astype(np.int32)
    images = np.zeros((60_000, 1, 1, 1), np.uint8)
    arrays = {'train_images': images, 'train_labels': labels, 'test_images': images[:10], 'test_labels': labels[:10]}
    dataset = data.dataset.make('mnist', arrays, num_classes=10)
    for partition, classes in (('uniform', 10), ('classes', 2)):
        config.federation.partition = partition
        split = data.make_partition(dataset, config_lib.resolve(config))
        assert not len(split.server_index)
        assert [len(rows) for rows in split.client_index] == [600] * 100
        assert {len(np.unique(labels[rows])) for rows in split.client_index} == {classes}
    assert (config.federation.num_active, config.local.epochs, config.batch_size) == (10, 1, 10)
    assert (config.momentum, config.weight_decay, config.lr) == (0.0, 0.0, config.lr_min)
