"""What M-Fed and its baselines send, worked out by hand for DeepLabV3+ on ResNet-18."""

import numpy as np
import pytest

from semisfl_jax import algorithms, costs
from semisfl_jax import config as config_lib
from semisfl_jax.config import get_config
from semisfl_jax.costs import prices
from semisfl_jax.costs.rounds import no_failures
from tests import toy_scenes

MIB = 2**20
SIDE = 64  # of images; bytes do not depend on it
# Parameters: ResNet-18 without classifier; DeepLabV3+ on its 512 channels, and 256 weights and a bias for each output
ENCODER, DECODER, OUTPUT = 11_176_512, 5_426_272, 257
# Channels of BatchNorm, each with a running mean and variance. Encoder: the stem, four stages of two blocks of two
# convolutions, three of them with a shortcut. Decoder: five branches of ASPP and their projection, each of 256, the
# low-level map's 48, two convolutions of 256
OF_ENCODER = 64 + 4 * (64 + 128 + 256 + 512) + (128 + 256 + 512)
OF_DECODER = (5 + 1) * 256 + 48 + 2 * 256
TASKS = {'semseg': 21, 'parts': 7, 'saliency': 1, 'edges': 1}  # outputs


def model_of(algorithm, names, **changes):
    """The cost model of PASCAL-Context's configuration."""
    clients = 5 * len(names)
    changes |= {'data.tasks': tuple(names), 'federation.num_clients': clients, 'federation.num_active': clients}
    config = config_lib.resolve(get_config('pascal_context', {'algorithm': algorithm, **changes}))
    outputs = tuple(TASKS[name] for name in names)
    return costs.build(
        config, algorithms.get(algorithm), 21, (SIDE, SIDE, 3), config_lib.hparams(config), outputs=outputs
    )


def bill(model, ids):
    steps = np.full(len(ids), 9)
    return costs.price_round(model, 0, 0, no_failures(np.array(ids), np.full(len(ids), 100), steps, steps > 0))


def parameters(name):
    """Of the model of a task."""
    return ENCODER + DECODER + OUTPUT * TASKS[name]


STATISTICS = 4 * 2 * (OF_ENCODER + OF_DECODER)  # bytes


def test_the_sizes_of_the_paper():
    """16,608,181 parameters, 63.36 MiB; g 42.6 MiB; together 106.0 down. The statistics add 0.05 MiB."""
    assert parameters('semseg') == 16_608_181
    down, up = 4 * (parameters('semseg') + ENCODER), 4 * parameters('semseg')
    assert [round(size / MIB, 1) for size in (down, up, 4 * ENCODER)] == [106.0, 63.4, 42.6]
    assert round(up / MIB, 2) == 63.36
    prices = model_of('m_fed', ['semseg']).pieces
    assert (prices.bottom_parameters, prices.statistics) == (4 * ENCODER, STATISTICS)
    assert prices.whole_bytes - prices.statistics == up
    assert round(STATISTICS / MIB, 2) == 0.05


@pytest.mark.parametrize(
    ('algorithm', 'changes', 'models', 'encoders'),
    [
        ('m_fed', {}, 1, 1),
        ('m_fed', {'mfed.weight': 0.0}, 1, 0),  # without penalty, g stays at the server
        ('mfed_fl', {}, 1, 0),
        ('mfed_local', {}, 0, 0),
    ],
)
def test_bytes_of_a_client(algorithm, changes, models, encoders):
    """The model of the task with its statistics both ways, and g, of parameters alone, down."""
    found = bill(model_of(algorithm, ['semseg'], **changes), [0])
    model = 4 * parameters('semseg') + STATISTICS
    assert found.bytes_down == models * model + encoders * 4 * ENCODER
    assert found.bytes_up == models * model


def test_clients_pay_for_the_decoder_of_their_task():
    """Client n works on task n mod 4; clients 0 to 19 are five of each. Then clients 1 and 6 alone, of parts and
    saliency."""
    model = model_of('m_fed', TASKS)
    found = bill(model, range(20))
    of_all = 20 * (4 * (ENCODER + DECODER) + STATISTICS) + 5 * 4 * OUTPUT * (21 + 7 + 1 + 1)
    assert (found.bytes_down, found.bytes_up) == (of_all + 20 * 4 * ENCODER, of_all)
    found = bill(model, [1, 6])
    assert found.bytes_up == 2 * (4 * (ENCODER + DECODER) + STATISTICS) + 4 * OUTPUT * (7 + 1)


def test_a_model_registered_anew_is_measured_anew(monkeypatch):
    """Under the name of another one, as in a notebook whose cell runs again: 3 * 6 + 6 + 6 * 6 + 6 parameters of two
    dense layers and 2 * 6 of a BatchNorm, in place of the 83,824 of scene_net's encoder."""
    spec = prices.DenseSpec('scene_net', 3, (16, 16, 3), 8)
    before = prices.measure(spec).bottom_parameters
    toy_scenes.small_model(monkeypatch)
    assert (before, prices.measure(spec).bottom_parameters) == (4 * 83_824, 4 * 78)
