"""Every key that shapes training, with every method: two values of it are two runs, or the command says why not.

A key is refused, or named as idle by `config.ignored_keys`, or else programs or their inputs differ; an idle key must
change neither. A program is a function of the hyper-parameters that it reads while it is traced, of the views that it
calls, of the model, and of its arguments: where none of that differs between two configurations, neither do their runs.
So a form of a method is traced once, and again only for a key that is read and said to be idle. Keys and values follow
from the configuration, so that none is forgotten.
"""

import dataclasses
import functools
import hashlib
import re

import jax
import numpy as np
import pytest
from jax.interpreters import partial_eval

from configs import default
from semisfl_jax import algorithms, augment, models
from semisfl_jax import config as config_lib
from semisfl_jax import data as data_lib
from semisfl_jax.base.errors import UserError
from semisfl_jax.config import ignored_keys, keys
from semisfl_jax.config.resolve import INERT
from semisfl_jax.training import driver, experiment, memory, simulation
from tests.helpers import needs, sharing, toy_scenes

BASE = {
    'data.name': 'digits',
    'data.num_labeled': 401,  # of which no class has a tenth
    'data.client_labels': 20,
    'data.num_validation': 20,
    'federation.num_clients': 10,
    'federation.num_active': 4,
    'federation.partition': 'dirichlet',
    'federation.mu': 1,
    'model.name': 'mcmahan_2nn',
    'k_s': 2,
    'k_u': 2,
    'batch_size': 8,
    'server_batch_size': 4,
    'queue_size': 16,
    'lr': 0.04,
    'lr_rounds': 100,
    'nesterov': False,  # which Adam refuses
    'threshold': 0.12,  # which an untrained model reaches for most images
    'frequency.period': 2,
    'frequency.horizon': 4,
    'frequency.check_every': 2,
    'cost.enabled': False,
    'augment.supervised': 'weak',
    'augment.flip': False,
    'augment.operations': 1,
    'augment.cutout': 2,
}
DENSE = {'federation.num_active': 4, 'federation.partition': 'uniform', 'data.num_labeled': 10, 'batch_size': 2}
# Keys without two values to compare here, by why
EXEMPT = {
    'how a run is managed and computed': (
        *INERT,
        *('algorithm', 'setting', 'seeds', 'eval_every', 'eval_batch_size', 'precision', 'deterministic'),
        *('federation.client_map', 'federation.client_chunk', 'model.convolution', 'model.recompute'),
    ),
    'which images there are: it takes other data': (
        *('data.name', 'data.fake', 'data.fake_size', 'data.image_size', 'data.class_list', 'data.image_folder'),
        *('data.tasks', 'data.partition_file', 'data.normalization'),
    ),
    'the model, for which there is a stand-in': ('model.name', 'model.weights', 'model.output_stride'),
    'files of a user': ('failures.trace', 'failures.trace_hash'),
}
EXEMPT_GROUPS = ('parallel.', 'cost.')  # of the first kind
# Second values, where half of a number, or two more, is none
VALUES = {
    'augment.magnitude': 9,
    'augment.randaugment': 'fixmatch',
    'augment.scale_max': 1.5,
    'data.client_labels': 30,
    'data.images_of_tasks': (20, 25),
    'data.num_unlabeled': 1000,
    'data.pad_to': 10,
    'data.partition_seed': 7,
    'failures.deadline_seconds': 1e-6,
    'federation.max_images': 130,  # of 102 on average
    'federation.min_images': 80,
    'federation.mismatch': 0.5,
    'frequency.alpha': 2.0,
    'frequency.period': 1,
    'model.split_index': 1,
    'queue_empty_slots': 'count',
    'threshold': 0.9,
}
# Idle, though programs differ, by a factor of a number that is always 0, or of labels that do not count; with forms
APPARENT = {
    'clustering_weight': 'semisfl unlabeled none',
    'consistency_weight': 'fedavg none',
    'contrastive_weight': 'supervised_only',
    'fed_shvr.ramp_rounds': 'fed_shvr none',
    'fedmatch.lambda_a': 'fedmatch none',
    'fedmatch.lambda_i': 'fedmatch no_helpers, no momentum',
    'local.ramp_rounds': 'fedavg pseudo_label none',
    'local.teacher_decay': 'fedavg mean_teacher none',
    'uda.temperature': 'fedavg uda none',
}
FORMS = {
    **{name: {} for name in algorithms.METHODS},
    **{f'{name} none': {'pseudo_labels': 'none'} for name in ('fedavg', 'fed_shvr', 'fedmatch', 'semisfl')},
    **{f'fedavg {kind}': {'local.objective': kind} for kind in ('supervised', 'uda', 'pseudo_label', 'mean_teacher')},
    **{
        f'fedavg {kind} none': {'local.objective': kind, 'pseudo_labels': 'none'}
        for kind in ('uda', 'pseudo_label', 'mean_teacher')
    },
    'fedavg rules': {
        'data.client_labels': 200,
        'federation.partition': 'dirichlet_class',
        'federation.alpha': 1.0,
        'federation.labeled_partition': 'dirichlet_class',
        'federation.labeled_alpha': 0.5,
    },
    'fedavg classes': {'federation.partition': 'classes', 'federation.mu': 0, 'local.epochs': 1},
    'fedavg all labels': {'local.objective': 'supervised', 'data.client_labels': -1, 'k_s': 0},
    'fedavg clients': {'k_s': 0, 'data.client_labels': 401},
    'fedavg true': {'pseudo_labels': 'true'},
    'fedavg unlabeled': {'data.client_labels': 0},
    'fedavg without momentum': {'momentum': 0.0},
    'fed_shvr strong': {'augment.supervised': 'strong'},
    'fed_shvr alpha0': {'fed_shvr.alpha0': 0.0, 'fed_shvr.ramp_rounds': 0},
    'fed_shvr alpha1': {'fed_shvr.alpha1': 0.0},
    'feddure no_coarse': {'feddure.coarse': False},
    'feddure no_fine': {'feddure.fine': False},
    'fedmatch no_helpers, no momentum': {'fedmatch.helpers': 0, 'momentum': 0.0, 'local.optimizer_state': 'kept'},
    'fedswitch student': {'fedswitch.mode': 'student'},
    'semifl epochs, no momentum': {'local.epochs': 1, 'momentum': 0.0},
    'semisfl off': {'queue': 'off'},
    'semisfl ring': {'queue': 'single_ring', 'queue_empty_slots': 'ignore'},
    'semisfl unlabeled none': {'data.client_labels': 0, 'pseudo_labels': 'none'},
    'splitfed v2, no momentum': {'splitfed.version': 'v2', 'momentum': 0.0},
}
OF_DATA = ('data.', 'federation.', 'failures.')  # a form of other keys alone tries none of these, and the reverse
# Each key is read in one of these: a method of each group of options, and forms that read all other keys
OF_OPTIONS = {method.option_group: name for name, method in reversed(algorithms.METHODS.items())}
READING = {'semisfl', 'fedavg', 'fedavg uda', 'fedavg mean_teacher', 'fedavg rules', 'fedavg classes', 'fedprox'}
READING |= {'fed_shvr strong', *OF_OPTIONS.values()}

# --- what programs are made of

VIEWS = ('weak', 'strong', 'supervised', 'together')
READ = set()  # names of what has been read


@pytest.fixture(scope='module', autouse=True)
def recorded():
    """What programs read is in READ; data sets are loaded, views and first weights traced, once."""
    build, replace, views, model = algorithms.build, dataclasses.replace, experiment.views, models.build

    def build_recorded(name, model, views, hparams, axis):
        def called(view):
            return lambda *arguments: READ.add(view) or getattr(views, view)(*arguments)

        return build(name, model, views._replace(**{view: called(view) for view in VIEWS}), recording(hparams), axis)

    def quick_model(*arguments, **named):
        made = model(*arguments, **named)
        return made._replace(init=jax.jit(made.init))

    def replace_unrecorded(record, /, **changes):
        before = set(READ)
        made = replace(record, **changes)
        READ.intersection_update(before)
        return made

    def quick_views(options, dataset):
        made = views(options, dataset)
        weak, strong = jax.jit(made.weak), jax.jit(made.strong)
        supervised = strong if options.supervised == 'strong' else weak
        return made._replace(weak=weak, strong=strong, supervised=supervised, together=jax.jit(made.together))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(algorithms, 'build', build_recorded)
        patch.setattr(memory, 'check', lambda config, shares_of: None)  # traces programs, too
        patch.setattr(dataclasses, 'replace', replace_unrecorded)
        patch.setattr(models, 'build', sharing.once(quick_model))
        patch.setattr(experiment, 'views', sharing.once(quick_views, sharing.of_views))
        patch.setattr(data_lib, 'load', sharing.once(data_lib.load, lambda options: options.to_json()))
        toy_scenes.small_model(patch)
        yield


def recording(record, prefix=''):
    """A frozen dataclass, and those in it, as one that notes the fields that are read."""
    names = {field.name for field in dataclasses.fields(record)}

    class Recording(type(record)):
        def __getattribute__(self, name):
            if name in names:
                READ.add(prefix + name)
            return super().__getattribute__(name)

        __eq__, __hash__ = object.__eq__, object.__hash__

    made = object.__new__(Recording)
    for name in names:
        value = getattr(record, name)
        inner = dataclasses.is_dataclass(value)
        object.__setattr__(made, name, recording(value, f'{prefix}{name}.') if inner else value)
    return made


def flat_record(record, prefix=''):
    """{dotted name: value} of a frozen dataclass."""
    flat = {}
    for field in dataclasses.fields(record):
        value, name = getattr(record, field.name), prefix + field.name
        flat |= flat_record(value, f'{name}.') if dataclasses.is_dataclass(value) else {name: value}
    return flat


def text_of(function, *arguments):
    """A program without what its results do not depend on, and whether they do on each leaf of its arguments."""
    closed = jax.make_jaxpr(function)(*arguments)
    needed, used = partial_eval.dce_jaxpr(closed.jaxpr, [True] * len(closed.jaxpr.outvars))
    return re.sub('0x[0-9a-f]+', '', str(needed)) + ' '.join(map(digest, closed.consts)), used


@functools.cache
def view_text(kind, settings, shape):
    images, targets = jax.ShapeDtypeStruct(shape, np.uint8), {'depth': jax.ShapeDtypeStruct(shape[:-1], np.uint8)}
    arguments = (jax.random.key(0), images, targets)[: 3 if kind == 'together' else 2]
    return text_of(functools.partial(getattr(augment, kind), options=settings), *arguments)[0]


def digest(array):
    if isinstance(array, jax.Array) and jax.dtypes.issubdtype(array.dtype, jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    array = np.asarray(array)
    return hashlib.sha256(f'{array.shape} {array.dtype} '.encode() + array.tobytes()).hexdigest()


class Made:
    """The programs of a configuration (checked), as far as they are asked for."""

    def __init__(self, config):
        READ.clear()
        self.built = experiment.build(config_lib.resolve(config))
        self.read, stream = set(READ), driver.Driver([self.built]).inputs(0)
        self.arguments = [(self.built.key, *next(stream)[:2], np.int32(2)) for _ in range(2)]

    @functools.cached_property
    def traced(self):
        """Texts of round, first state and outputs, and which leaves of its arguments but the state the round uses."""
        built, algorithm = self.built, self.built.algorithm
        images = jax.ShapeDtypeStruct((2, *built.dataset.test_images.shape[1:]), np.uint8)
        READ.clear()
        state = jax.eval_shape(algorithm.init, built.key)
        key, *others = self.arguments[0]
        round_, used = text_of(algorithm.round, key, state, *others)
        texts = round_, text_of(algorithm.init, built.key)[0], text_of(algorithm.predict, state, images)[0]
        self.read |= READ
        return texts, (used[0], *used[1 + len(jax.tree.leaves(state)) :])

    def inputs(self, used):
        """What a run depends on beside its programs: leaves that are used, images for tests, what decides on K_s."""
        leaves = [jax.tree.leaves(arguments) for arguments in self.arguments]
        if len(leaves[0]) != len(used):
            return None
        found = [digest(x) for of_round in leaves for x, is_used in zip(of_round, used, strict=True) if is_used]
        k_s, options = self.built.config.k_s, self.built.frequency
        of_rules = {'fixed': 0, 'coverage': dataclasses.replace(options, beta=0)}  # which read less
        controller = k_s, options.rule, of_rules.get(options.rule, options)
        return found, digest(self.built.dataset.test_images), controller if used[-1] else None

    def view(self, name):
        options, images = self.built.config.augment, self.built.dataset.train_images
        settings = augment.AugmentOptions(**options)
        return view_text(options.supervised if name == 'supervised' else name, settings, (2, *images.shape[1:]))

    def differs(self, other, idle):
        """Whether anything that this one reads differs. Of an idle key the model may: by a part that nothing trains."""
        _, used = self.traced
        mine, theirs = (flat_record(made.built.hparams) for made in (self, other))
        return (
            any(mine[name] != theirs[name] for name in self.read & mine.keys())
            or any(self.view(name) != other.view(name) for name in self.read & set(VIEWS))
            or (not idle and self.built.model != other.built.model)
            or self.inputs(used) != other.inputs(used)
        )

    def same(self, other):
        """Whether both train to the same numbers."""
        texts, used = self.traced
        return texts == other.traced[0] and self.inputs(used) == other.inputs(used)


# --- keys


def configuration(form, **changes):
    name = form.split()[0]
    method = algorithms.get(name)
    own = {'data.client_labels': 0} if name == 'semifl' or not method.clients else {}
    own |= {'k_s': 0} if method.server == 'none' else {}
    config = default.get_config()
    config.update_from_flattened_dict(
        BASE | own | needs.changes(name) | (DENSE if method.dense else {}) | FORMS[form] | changes
    )
    return config


def exempt(key):
    return key.startswith(EXEMPT_GROUPS) or any(key in keys for keys in EXEMPT.values())


def other(key, value):
    """Another value of a key, of the same type; one of another meaning than a resolved one."""
    if key in VALUES:
        return VALUES[key]
    if choices := keys.fields()[key].metadata['choices']:
        return next(choice for choice in choices if choice not in (value, 'auto'))
    if isinstance(value, bool):
        return not value
    return (value / 2 or 0.5) if isinstance(value, float) else (value or 0) + 2


@functools.cache
def findings(form):
    """{key: 'refused', 'idle', 'read', 'read, but idle' or 'not read'}."""
    config, found = configuration(form), {}
    config_lib.check(config)
    base = Made(config)
    method, resolved = algorithms.get(config.algorithm), config_lib.flatten(base.built.config)
    of_data = {key.startswith(OF_DATA) for key in FORMS[form]} or {True, False}
    for key in config_lib.flatten(config):
        if exempt(key) or key not in resolved:  # an option of another method
            continue
        if key.startswith(OF_DATA) not in of_data and key not in FORMS[form]:  # as in the method's own form
            continue
        if method.dense and key == 'model.batch_norm_variance':  # the stand-in has one estimator
            continue
        try:
            changed = configuration(form, **{key: other(key, resolved[key])})
            config_lib.check(changed)
            with_other = Made(changed)
        except UserError:
            found[key] = 'refused'
            continue
        idle = key in ignored_keys.find(changed)
        differs = base.differs(with_other, idle)
        if differs and (idle or ('none' in form and key.split('.')[0] == method.option_group)):
            differs = not base.same(with_other)
        found[key] = ('read, but idle' if idle else 'read') if differs else ('idle' if idle else 'not read')
    return found


@pytest.mark.slow
@pytest.mark.parametrize('form', FORMS)
def test_a_key_is_read_or_its_user_is_told(form):
    found = findings(form)
    assert {key for key, finding in found.items() if finding == 'not read'} == set()
    assert {key for key, finding in found.items() if finding == 'read, but idle'} <= APPARENT.keys()


# Read with BatchNorm alone, which no model here has (tests/end_to_end/test_batch_norm.py)
OF_BATCH_NORM = {'client_teacher_bn', 'model.batch_norm_variance', 'semifl.batch_norm_data'}


@pytest.mark.slow
def test_every_key_is_read_in_some_form():
    """So no exception, and no second value, hides one."""
    read = {key for form in READING for key, finding in findings(form).items() if finding == 'read'}
    known = {key for key in config_lib.flatten(default.get_config()) if not exempt(key)}
    assert known - read == OF_BATCH_NORM


@pytest.mark.slow
@pytest.mark.parametrize('key', APPARENT)
def test_two_values_train_alike_where_a_key_is_idle_in_appearance(key):
    results, config = [], configuration(APPARENT[key])
    changed = configuration(APPARENT[key], **{key: other(key, config_lib.flatten(config)[key])})
    assert key in ignored_keys.find(changed)
    for each in (config, changed):
        sim = simulation.Simulation(Made(each).built)
        carry, _ = sim.round(sim.init())
        carry, metrics = sim.round(carry)
        results.append((carry.state, metrics))
    for a, b in zip(*map(jax.tree.leaves, results), strict=True):
        np.testing.assert_array_equal(a, b)
