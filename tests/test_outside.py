"""A method from outside whose clients read whole sets: its record says so, and nothing asks for its name."""

import dataclasses
import json
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from semisfl_jax import algorithms, core, costs, tasks
from semisfl_jax import config as config_lib
from semisfl_jax.core import losses, rng
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.hparams import learning_rate, optimizer
from semisfl_jax.core.state import State, with_parameters
from semisfl_jax.core.types import LOCAL_CLIENTS, Algorithm
from semisfl_jax.training import checks, inputs
from semisfl_jax.training import experiment as experiment_lib
from tests import runs
from tests.one_line import assert_one_line


def one_pass(model, views, hparams, axis=LOCAL_CLIENTS):
    """Each client passes once over all its images in batches of B, however many K_u are, and learns to predict of an
    image what the model that it received predicts; of the images that it has labels for, the label."""

    def client(inputs, client_state, state, federation, lr):
        size, labeled_size = federation.size[inputs.id], federation.labeled_size[inputs.id]
        width = federation.index.shape[1]
        steps = -(-(size + labeled_size) // hparams.batch_size)

        def loss(parameters, student, _, t):
            positions = t * hparams.batch_size + jnp.arange(hparams.batch_size)
            ours = positions < size + labeled_size
            positions = jnp.where(positions < size, positions, width + jnp.clip(positions - size, 0, labeled_size - 1))
            rows = inputs.rows[positions]
            images = views.normalize(federation.client_images[rows])
            guesses = jnp.argmax(core.forward(model, state.student, images, None, False)[0], axis=-1)
            labels = jnp.where(inputs.labeled[positions], federation.client_labels[rows], guesses)
            student = with_parameters(student, parameters)
            logits, student = core.forward(model, student, images, rng.fold(inputs.key, t), True)
            value = losses.cross_entropy(logits, labels, ours.astype(jnp.float32))
            return value, (student, {'loss_local': value}, {})

        ended = core.local_sgd(loss, state.student, client_state, optimizer(hparams, lr), steps)
        return core.ClientOutput(*ended[:2], ended[2] | {'client_steps': jnp.float32(steps)}, ended[3])

    local = core.build_local(client, hparams, axis, reads='sets')

    def init(key):
        return core.init_state(key, model, teacher=False)

    def round_(key, state, federation, cohort, k_s):
        lr = learning_rate(hparams, state.round)
        student, _, metrics = local(key, state, federation, cohort, lr)
        return state.replace(round=state.round + 1, student=student), {'lr': lr, **metrics}

    return Algorithm(init, round_, core.predict_by(model, views, 'student'), headline='student')


METHOD = algorithms.Method(
    'one_pass', one_pass, uses=('local', 'pre-rounds'), server='optional', reads='sets', price=costs.whole_model
)


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


@pytest.mark.parametrize(
    ('changes', 'expected'),
    [
        ({}, 'unlabeled'),
        (LABELS, 'both'),
        ({'algorithm': 'fedavg', 'local__objective': 'supervised', **LABELS}, 'labeled'),
    ],
)
def test_the_host_counts_the_images_of_a_client_that_the_round_weights_it_by(changes, expected):
    config = config_lib.resolve(runs.config(**({'algorithm': 'one_pass', **changes}), local__weighting='samples'))
    built = experiment_lib.build(config)
    valid, cohort = inputs.participation(built, 0), next(inputs.cohorts(built, 0))[0]
    parts = built.partition.client_index, built.partition.client_labeled_index
    unlabeled, labeled = (np.array([len(rows[n]) for n in valid.ids]) for rows in parts)
    counts = {'unlabeled': unlabeled, 'labeled': labeled, 'both': unlabeled + labeled}
    assert valid.images.tolist() == counts[expected].tolist()
    state = built.algorithm.init(built.key)
    _, part = core.plan(built.key, state, built.federation, cohort, built.hparams, built.method.reads)
    assert part.share.tolist() == counts[expected].tolist()


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


@dataclasses.dataclass(frozen=True)
class Options:
    share: float = algorithms.option(0.5, 'a share', at_least=0, below=1)
    kind: str = algorithms.option('a', 'a or b', choices=('a', 'b'))
    widths: tuple = algorithms.option((1, 2), 'several numbers')


NEGATIVE = ('strength', float, algorithms.option(-1.0, 'a number', at_least=0))


def test_options_are_keys_with_their_defaults_and_reach_the_method(monkeypatch):
    monkeypatch.delitem(algorithms.METHODS, 'one_pass')
    algorithms.register(dataclasses.replace(METHOD, options=Options))
    config_lib.check(runs.config())  # at their defaults, runs of other methods are as before
    assert 'one_pass' not in config_lib.resolve(runs.config())
    config = runs.config(algorithm='one_pass', one_pass__share=0.25, one_pass__widths=(3, 4, 5))
    assert config.one_pass.to_dict() == {'share': 0.25, 'kind': 'a', 'widths': (3, 4, 5)}
    config = config_lib.resolve(config)
    read = ConfigDict(json.loads(json.dumps(config.to_dict())))  # as from config.json
    for each in (config, read):
        assert config_lib.hparams(each).options == Options(share=0.25, widths=(3, 4, 5))
    assert config_lib.differences(config, read) == []
    for changes, named in (
        ({'one_pass__share': 1.0}, 'one_pass.share=1.0 '),
        ({'one_pass__kind': 'c'}, "one_pass.kind='c' "),
        ({'algorithm': 'semisfl', 'one_pass__widths': (1,)}, 'one_pass.widths=[1] '),
        ({'queue': 'off'}, 'queue=off '),  # it does not use clustering
        ({'setting': 'official'}, 'one_pass'),
        ({'k_s': 0}, 'k_s=0 '),
    ):
        with pytest.raises(UserError, match=re.escape(named)):
            config_lib.check(runs.config(**({'algorithm': 'one_pass'} | changes)))


@pytest.mark.parametrize(
    ('changes', 'named'),
    [
        ({'name': 'semisfl'}, 'of that name'),
        ({'name': 'My method'}, "'My method'"),
        ({'uses': ('teachers',)}, "'teachers' .*'teacher'"),
        ({'reads': 'everything'}, "reads='everything'"),
        ({'server': 'never'}, "server='never'"),
        ({'k_s_rule': 'constant'}, "k_s_rule='constant'"),
        ({'build': None}, 'build is None'),
        ({'options': dict}, 'options'),
        ({'options': Options()}, 'options must be a class'),
        ({'options': Options, 'group': 'my.group'}, 'name and group'),
        ({'options': Options, 'group': 'fedmatch'}, r'config\.fedmatch'),
        ({'options': Options, 'group': 'cost'}, r'config\.cost'),
        ({'options': dataclasses.make_dataclass('Own', [NEGATIVE], frozen=True)}, r'config\.one_pass\.strength=-1\.0'),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(changes, named):
    with pytest.raises(ValueError, match=named):
        algorithms.register(dataclasses.replace(METHOD, **changes))
    with pytest.raises(ValueError, match='function'):
        algorithms.register(one_pass)


def shape(*sizes, kind=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, kind)


def state(**changes):
    plain = {'round': jnp.int32(0), 'step': jnp.int32(0), 'student': {'w': shape(2, 3)}, 'teacher': (), 'queue': ()}
    return State(**plain | {'clients': (shape(5),)} | changes)


def test_a_round_returns_a_state_like_the_one_before_and_scalars():
    right, narrow = {'depth': shape(), 'constant': 1.5}, {'w': shape(2, 3, kind=jnp.bfloat16)}
    checks.check_round('mine', state(), state(), right)
    for after, metrics, named in (
        (state(), {'wall_seconds': shape()}, "'wall_seconds'"),
        (state(), {'depths': shape(2)}, "'depths' is float32 [2]"),
        (state(student=narrow), {}, "float32 [2, 3] as state.student['w'] and returns bfloat16 [2, 3]"),
        (state(server={'sum': shape()}), {}, "nothing as state.server['sum']"),
    ):
        with pytest.raises(UserError, match=f"'mine': .*{re.escape(named)}"):
            checks.check_round('mine', state(), after, right | metrics)


def test_predict_returns_logits_and_the_headline_is_one_of_them():
    def predict(outputs):
        algorithm = Algorithm(None, None, lambda state, images: outputs, 'student')
        return checks.check_predict('mine', algorithm, lambda name: tasks.classification(10))(None, np.zeros((2, 8, 8)))

    right = {'student': shape(2, 10), 'teacher': (shape(2, 10), shape(2, 10))}
    assert predict(right) is right
    for wrong in ({}, {'best': shape(2, 10)}, {'teacher': shape(2, 10)}, {'student': shape(2, 13)}):
        with pytest.raises(UserError, match=r"'mine': .*(2, 13|student)"):
            predict(wrong)


@pytest.mark.parametrize(
    ('changes', 'named'),
    [
        ({'price': lambda context: 3}, 'price'),
        ({'price': lambda context: costs.ClientCost(order='sequentiel')}, "order='sequentiel'"),
        ({'build': lambda *_: None}, 'build returns None'),
        ({'reads': 'batches'}, "reads='batches'"),  # its clients read sets
    ],
)
def test_what_a_method_returns_is_refused_before_anything_is_written(monkeypatch, tmp_path, capsys, changes, named):
    monkeypatch.setitem(algorithms.METHODS, 'one_pass', dataclasses.replace(METHOD, **changes))
    assert runs.run(tmp_path / 'run', **TOY, data__residency='host') == 2
    assert_one_line(capsys.readouterr().err, [named])
    assert not (tmp_path / 'run').exists()


@pytest.mark.slow
def test_rounds_that_are_not_counted_end_the_run(monkeypatch, tmp_path, capsys):
    def change(round_):
        def changed(key, state, *rest):
            after, found = round_(key, state, *rest)
            return after.replace(round=state.round * 2), found  # known only once it is computed

        return changed

    runs.change_rounds(monkeypatch, change)
    assert runs.run(tmp_path / 'run', **TOY, seeds='0,1') == 2
    assert_one_line(capsys.readouterr().err, ["'one_pass'", 'round=0'])
    assert not list((tmp_path / 'run').rglob('checkpoints/*'))
