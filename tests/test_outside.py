"""A method from outside whose clients read whole sets: its record says so, and nothing asks for its name."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_collections import ConfigDict

from configs import default
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

        student, client_state, means, counts = core.local_sgd(
            loss, state.student, client_state, optimizer(hparams, lr), steps
        )
        return core.ClientOutput(student, client_state, means | {'client_steps': jnp.float32(steps)}, counts)

    local = core.build_local(client, hparams, axis, reads='sets')

    def init(key):
        return core.init_state(key, model, teacher=False)

    def round_(key, state, federation, cohort, k_s):
        lr = learning_rate(hparams, state.round)
        student, _, metrics = local(key, state, federation, cohort, lr)
        return state.replace(round=state.round + 1, student=student), {'lr': lr, **metrics}

    def predict(state, images):
        return {'student': core.predict(model, views, state.student, images)}

    return Algorithm(init, round_, predict, headline='student')


METHOD = algorithms.Method(
    'one_pass', one_pass, uses=('local', 'pre-rounds'), server='optional', reads='sets', price=costs.whole_model
)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(algorithms.METHODS, 'one_pass', METHOD)


# Ten clients share 1,397 images of the digits without labels, and 20 with: 139 or 140, and 2
TOY = {'algorithm': 'one_pass', 'rounds': 2, 'checkpoint_every': 1}
LABELS = {'data__client_labels': 20, 'federation__mu': 1}


def test_images_on_the_host_give_the_same_bytes(tmp_path):
    for residency in ('device', 'host'):
        assert runs.run(tmp_path / residency, **TOY, **LABELS, data__residency=residency) == 0
    assert runs.lines(tmp_path / 'host') == runs.lines(tmp_path / 'device')
    for record in runs.records(tmp_path / 'host'):
        # (139 + 2) / 4 and (140 + 2) / 4 are 36 batches, whatever K_u; the server's 8 batches of 4 beside them
        images = record['images_per_second'] * record['wall_seconds']
        assert images == pytest.approx(3 * 36 * 4 + 8 * 4, rel=0.02)


@pytest.mark.slow
def test_seeds_in_one_program_are_single_runs_with_images_on_the_host(tmp_path):
    assert runs.run(tmp_path / 'alone', **TOY, **LABELS) == 0
    host = {'data__residency': 'host', 'seeds': '0,1', 'parallel__trials': 'loop'}
    assert runs.run(tmp_path / 'seeds', **TOY, **LABELS, **host) == 0
    assert runs.lines(tmp_path / 'seeds' / 'seed_0') == runs.lines(tmp_path / 'alone')


@pytest.mark.parametrize(
    ('changes', 'expected'),
    [
        ({}, 'unlabeled'),
        (LABELS, 'both'),
        ({'algorithm': 'fedavg', 'local__objective': 'supervised', **LABELS}, 'labeled'),
        ({'algorithm': 'fedavg', 'local__objective': 'fixmatch', **LABELS}, 'both'),
    ],
    ids=['outside', 'outside_labels', 'supervised', 'fixmatch'],
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


def test_a_record_that_says_otherwise_than_its_rounds_ends_in_one_line(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(algorithms.METHODS, 'one_pass', dataclasses.replace(METHOD, reads='batches'))
    assert runs.run(tmp_path / 'run', **TOY, data__residency='host') == 2
    assert_one_line(capsys.readouterr().err, ["reads='batches'", "'sets'"])
    assert not (tmp_path / 'run').exists()


def test_without_a_price_it_trains_and_says_that_it_has_none(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(algorithms.METHODS, 'one_pass', dataclasses.replace(METHOD, price=None))
    assert runs.run(tmp_path / 'run', **TOY) == 0
    assert 'one_pass has no price' in capsys.readouterr().out
    assert not {'bytes_up', 'bytes_down', 'simulated_seconds'} & runs.records(tmp_path / 'run')[-1].keys()
    assert runs.run(tmp_path / 'late', **TOY, failures__deadline_seconds=5.0) == 2
    assert_one_line(capsys.readouterr().err, ['deadline_seconds'])


@dataclasses.dataclass(frozen=True)
class Options:
    share: float = algorithms.option(0.5, 'a share', at_least=0, below=1)
    kind: str = algorithms.option('a', 'a or b', choices=('a', 'b'))
    widths: tuple = algorithms.option((1, 2), 'several numbers')


def options_with(default, **bounds):
    """A dataclass of one option, `strength`."""
    fields = [('strength', type(default), algorithms.option(default, 'a number', **bounds))]
    return dataclasses.make_dataclass('Own', fields, frozen=True)


@pytest.fixture
def with_options(monkeypatch):
    monkeypatch.delitem(algorithms.METHODS, 'one_pass')
    return algorithms.register(dataclasses.replace(METHOD, options=Options))


@pytest.mark.usefixtures('with_options')
def test_options_are_keys_with_their_defaults_and_reach_the_method():
    config_lib.check(runs.config())  # at their defaults, runs of other methods are as before
    assert 'one_pass' not in config_lib.resolve(runs.config())
    config = runs.config(algorithm='one_pass', one_pass__share=0.25, one_pass__widths=(3, 4, 5))
    assert config.one_pass.to_dict() == {'share': 0.25, 'kind': 'a', 'widths': (3, 4, 5)}
    config = config_lib.resolve(config)
    assert config_lib.hparams(config).options == Options(share=0.25, widths=(3, 4, 5))
    read = ConfigDict(json.loads(json.dumps(config.to_dict())))  # as from config.json
    assert config_lib.hparams(read).options == Options(share=0.25, widths=(3, 4, 5))
    assert config_lib.differences(config, read) == []


@pytest.mark.usefixtures('with_options')
@pytest.mark.parametrize(
    ('changes', 'named'),
    [
        ({'one_pass__share': 1.0}, r'one_pass\.share=1\.0 '),
        ({'one_pass__share': math.nan}, r'one_pass\.share=nan '),
        ({'one_pass__kind': 'c'}, r"one_pass\.kind='c' .*a, b"),
        ({'algorithm': 'semisfl', 'one_pass__widths': (1,)}, r'one_pass\.widths=\[1\] .*semisfl'),
        ({'queue': 'off'}, 'queue=off .*one_pass'),  # it does not use clustering
        ({'setting': 'official'}, 'one_pass'),
        ({'k_s': 0}, r'k_s=0 '),
    ],
)
def test_wrong_options_end_in_one_line(changes, named):
    with pytest.raises(UserError, match=named):
        config_lib.check(runs.config(**({'algorithm': 'one_pass'} | changes)))


def test_a_configuration_that_was_made_before_the_method_says_so(monkeypatch, with_options):
    monkeypatch.delitem(algorithms.METHODS, 'one_pass')
    config = default.get_config()
    algorithms.register(with_options)
    config_lib.check(config)
    config.algorithm = 'one_pass'
    with pytest.raises(UserError, match=r'config\.one_pass\.share .*register'):
        config_lib.check(config)


@pytest.mark.parametrize(
    ('changes', 'named'),
    [
        ({'name': 'semisfl'}, 'of that name'),
        ({'name': 'My method'}, "'My method'"),
        ({'uses': ('teachers',)}, "'teachers' .*'teacher'"),
        ({'reads': 'everything'}, "reads='everything'"),
        ({'server': 'never'}, "server='never'"),
        ({'options': dict}, 'options'),
        ({'options': Options, 'group': 'fedmatch'}, r'config\.fedmatch'),
        ({'options': Options, 'group': 'cost'}, r'config\.cost'),
        ({'options': options_with(-1.0, at_least=0)}, r'config\.one_pass\.strength=-1\.0'),
    ],
)
def test_a_record_that_contradicts_itself_is_refused(changes, named):
    with pytest.raises(ValueError, match=named):
        algorithms.register(dataclasses.replace(METHOD, **changes))


# --- what its functions return


def shape(*sizes, kind=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, kind)


def state(**changes):
    plain = {'round': jnp.int32(0), 'step': jnp.int32(0), 'student': {'w': shape(2, 3)}, 'teacher': (), 'queue': ()}
    return State(**plain | {'clients': (shape(5),)} | changes)


@pytest.mark.parametrize(
    ('after', 'metrics', 'named'),
    [
        (state(), {'wall_seconds': shape()}, "'wall_seconds'"),
        (state(), {'depths': shape(2)}, r"'depths' is float32 \[2\]"),
        (
            state(student={'w': shape(2, 3, kind=jnp.bfloat16)}),
            {},
            r"state\.student\['w'\] and returns bfloat16 \[2, 3\]",
        ),
        (state(server={'sum': shape()}), {}, r"nothing as state\.server\['sum'\]"),
    ],
)
def test_a_round_returns_a_state_like_the_one_before_and_scalars(after, metrics, named):
    right = {'depth': shape(), 'constant': 1.5}
    checks.check_round('mine', state(), state(), right)
    with pytest.raises(UserError, match=f"'mine': .*{named}"):
        checks.check_round('mine', state(), after, right | metrics)


@pytest.mark.parametrize(
    ('outputs', 'named'),
    [
        ({}, r'\[\]'),
        ({'best': shape(2, 10)}, "'best'"),
        ({'teacher': shape(2, 10)}, "'student'"),
        ({'student': shape(2, 13)}, r"\[2, 13\] for 'student' of 2 images; return \[2, 10\]"),
    ],
)
def test_predict_returns_logits_and_the_headline_is_one_of_them(outputs, named):
    def predict(outputs):
        algorithm = Algorithm(None, None, lambda state, images: outputs, 'student')
        checked = checks.check_predict('mine', algorithm, lambda name: tasks.classification(10))
        return checked(None, np.zeros((2, 8, 8)))

    right = {'student': shape(2, 10), 'teacher': (shape(2, 10), shape(2, 10))}
    assert predict(right) is right
    with pytest.raises(UserError, match=f"'mine': .*{named}"):
        predict(outputs)


def returning(change=lambda before, after: after, **metrics):
    """The method whose rounds return what `change` makes of the states before and after, and more metrics."""

    def build(*arguments):
        algorithm = one_pass(*arguments)

        def round_(key, state, *inputs):
            after, found = algorithm.round(key, state, *inputs)
            return change(state, after), found | metrics

        return algorithm._replace(round=round_)

    return dataclasses.replace(METHOD, build=build)


@pytest.mark.parametrize(
    ('method', 'named'),
    [
        (returning(loss_rows=jnp.zeros(3)), "metric 'loss_rows'"),
        (dataclasses.replace(METHOD, price=lambda context: 3), 'price'),
        (dataclasses.replace(METHOD, price=lambda context: costs.ClientCost(order='sequentiel')), "order='sequentiel'"),
    ],
)
def test_what_a_method_returns_is_refused_before_anything_is_written(monkeypatch, tmp_path, capsys, method, named):
    monkeypatch.setitem(algorithms.METHODS, 'one_pass', method)
    assert runs.run(tmp_path / 'run', **TOY) == 2
    assert_one_line(capsys.readouterr().err, ["'one_pass'", named])
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('seeds', [{}, {'seeds': '0,1', 'parallel__trials': 'loop'}], ids=['one', 'two'])
def test_rounds_that_are_not_counted_end_the_run(monkeypatch, tmp_path, capsys, seeds):
    method = returning(lambda before, after: after.replace(round=before.round * 2))  # known only once it is computed
    monkeypatch.setitem(algorithms.METHODS, 'one_pass', method)
    assert runs.run(tmp_path / 'run', **TOY, **seeds) == 2
    assert_one_line(capsys.readouterr().err, ["'one_pass'", 'round=0'])
    assert not list((tmp_path / 'run').rglob('checkpoints/*'))


def test_what_is_no_record_or_no_algorithm_is_refused(monkeypatch):
    with pytest.raises(ValueError, match='function'):
        algorithms.register(one_pass)
    monkeypatch.setitem(algorithms.METHODS, 'one_pass', dataclasses.replace(METHOD, build=lambda *_: None))
    with pytest.raises(UserError, match="'one_pass': build returns None"):
        experiment_lib.build(config_lib.resolve(runs.config(algorithm='one_pass')))


def test_a_method_that_exec_defined_may_be_registered_again(monkeypatch, with_options):
    """A function that it defines without a name of the module has none."""
    monkeypatch.setattr(one_pass, '__module__', None)
    again = dataclasses.replace(with_options, title='Again')
    assert algorithms.register(again) is again
    assert algorithms.get('one_pass').label == 'Again'
