"""What the record of a method says of it: its groups of keys, and how its model is divided."""

import pytest

from semisfl_jax import algorithms
from semisfl_jax.algorithms import method


@pytest.mark.parametrize(
    ('name', 'cuts', 'clusters', 'whole', 'group'),
    [
        ('semisfl', True, True, False, ''),
        ('fedswitch_sl', True, False, False, 'fedswitch'),  # the options of fedswitch, on models that are cut
        ('fedswitch', False, False, True, 'fedswitch'),
        ('fed_sh', False, False, True, 'fed_shvr'),
        ('supervised_only', False, False, False, ''),  # its keys are SemiSFL's, but nobody has the other half
    ],
)
def test_a_record_says_how_a_model_is_divided_and_where_its_options_stand(name, cuts, clusters, whole, group):
    record = algorithms.get(name)
    assert (record.cuts, record.clusters, record.whole_model) == (cuts, clusters, whole)
    assert record.option_group == group
    assert algorithms.Method('mine', lambda *_: None).label == 'mine'


def test_an_official_protocol_has_a_constant_rate_and_passes():
    values = method.protocol(clients=7, active=3, rounds=20, lr=0.03, momentum=0.5, batch_size=9, epochs=4)
    assert (values['lr'], values['lr_min'], values['momentum'], values['nesterov']) == (0.03, 0.03, 0.5, False)
    assert (values['federation.num_clients'], values['federation.num_active'], values['rounds']) == (7, 3, 20)
    assert (values['local.epochs'], values['batch_size']) == (4, 9)
