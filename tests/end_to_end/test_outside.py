"""A method from outside whose clients read whole sets: its record says so, and nothing asks for its name."""

import dataclasses

import pytest

from semisfl_jax import algorithms
from tests.helpers import runs
from tests.helpers.one_line import assert_one_line
from tests.helpers.one_pass import METHOD, one_pass


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(algorithms.METHODS, 'one_pass', METHOD)


# Ten clients share 1,397 images of the digits without labels, and 20 with: 139 or 140, and 2
TOY = {'algorithm': 'one_pass', 'rounds': 2, 'checkpoint_every': 1}
LABELS = {'data__client_labels': 20, 'federation__mu': 1}


@pytest.mark.slow
def test_images_on_the_host_give_the_same_bytes(tmp_path):
    for residency in ('device', 'host'):
        assert runs.run(tmp_path / residency, **TOY, **LABELS, data__residency=residency) == 0
    assert runs.lines(tmp_path / 'host') == runs.lines(tmp_path / 'device')
    for record in runs.records(tmp_path / 'host'):
        # (139 + 2) / 4 and (140 + 2) / 4 are 36 batches, whatever K_u; the server's 8 batches of 4 beside them
        images = record['images_per_second'] * record['wall_seconds']
        assert images == pytest.approx(3 * 36 * 4 + 8 * 4, rel=0.02)


@pytest.mark.slow
def test_without_a_price_and_metrics_it_trains_and_says_that_it_has_no_price(monkeypatch, tmp_path, capsys):
    def silent(*arguments):
        built = one_pass(*arguments)
        return built._replace(round=lambda *inputs: (built.round(*inputs)[0], {}))

    monkeypatch.setitem(algorithms.METHODS, 'one_pass', dataclasses.replace(METHOD, price=None, build=silent))
    assert runs.run(tmp_path / 'run', **TOY, seeds='0,1') == 0
    assert 'one_pass has no price' in capsys.readouterr().out
    assert not {'bytes_up', 'loss_local'} & set(runs.records(tmp_path / 'run' / 'seed_1')[-1])
    assert runs.run(tmp_path / 'late', **TOY, failures__deadline_seconds=5.0) == 2
    assert_one_line(capsys.readouterr().err, ['deadline_seconds'])
