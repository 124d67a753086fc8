"""Every key that shapes training, with every method: two values of it are two runs, or the command says why not.

A key is refused, or named as idle by `config.ignored_keys`, or else programs or their inputs
differ (tests/programs.py). An idle key must change neither. Keys and values follow from the
configuration, so that none is forgotten.
"""

import functools

import jax
import numpy as np
import pytest

from configs import default
from semisfl_jax import algorithms
from semisfl_jax import config as config_lib
from semisfl_jax.config import ignored_keys, keys
from semisfl_jax.config.resolve import INERT
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.keys import choices_of
from semisfl_jax.training import simulation
from tests import needs, programs, toy_scenes

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
        *('data.tasks', 'data.partition_file'),
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
# Idle, though programs differ: by a factor of a number that is always 0, or of labels that do not count
APPARENT = {
    'clustering_weight',
    'consistency_weight',
    'contrastive_weight',
    'fedmatch.lambda_a',
    'fed_shvr.ramp_rounds',
    'fedmatch.lambda_i',
    'local.ramp_rounds',
    'local.teacher_decay',
    'uda.temperature',
}
OBJECTIVES = ('supervised', 'uda', 'pseudo_label', 'mean_teacher')
LABELS_AT_CLIENTS = {'k_s': 0, 'data.client_labels': 401}
SLOW = {
    'fedavg all labels': {'local.objective': 'supervised', 'data.client_labels': -1, 'k_s': 0},
    'fedavg clients': LABELS_AT_CLIENTS,
    'fedavg epochs': {'local.epochs': 1},
    'fedavg ignored labels': {'federation.mu': 0},
    'fedavg true': {'pseudo_labels': 'true'},
    'fedavg unlabeled': {'data.client_labels': 0},
    'fedavg without momentum': {'momentum': 0.0},
    'fed_shvr alpha0': {'fed_shvr.alpha0': 0.0, 'fed_shvr.ramp_rounds': 0},
    'fed_shvr alpha1': {'fed_shvr.alpha1': 0.0},
    'fed_shvr epochs': {'local.epochs': 1},
    'fed_shvr clients': LABELS_AT_CLIENTS,
    'fed_shvr unlabeled': {'data.client_labels': 0},
    'feddure clients': LABELS_AT_CLIENTS,
    'feddure no_coarse': {'feddure.coarse': False},
    'feddure no_fine': {'feddure.fine': False},
    'feddure unlabeled': {'data.client_labels': 0},
    'fedmatch clients': LABELS_AT_CLIENTS,
    'fedmatch no_helpers': {'fedmatch.helpers': 0},
    'fedswitch student': {'fedswitch.mode': 'student'},
    'fedswitch_sl teacher': {'fedswitch.mode': 'teacher'},
    'semifl epochs': {'local.epochs': 1},
    'semisfl off': {'queue': 'off'},
    'semisfl ring': {'queue': 'single_ring', 'queue_empty_slots': 'ignore'},
    'semisfl true': {'pseudo_labels': 'true'},
    'semisfl unlabeled': {'data.client_labels': 0},
    'semisfl unlabeled none': {'data.client_labels': 0, 'pseudo_labels': 'none'},
    'splitfed epochs': {'local.epochs': 1},
    'splitfed strong': {'augment.supervised': 'strong'},
    'splitfed v2': {'splitfed.version': 'v2'},
    **{f'fedprox {kind}': {'local.objective': kind} for kind in OBJECTIVES},
    **{f'fedavg {kind} none': {'local.objective': kind, 'pseudo_labels': 'none'} for kind in OBJECTIVES[1:]},
    **{
        f'{name} none': {'pseudo_labels': 'none'}
        for name, method in algorithms.METHODS.items()
        if 'pseudo-labels' in method.uses
    },
}
QUICK = {
    **{name: {} for name in algorithms.METHODS},
    **{f'fedavg {kind}': {'local.objective': kind} for kind in OBJECTIVES},
    **{f'{name} none': SLOW.pop(f'{name} none') for name in ('fedavg', 'fed_shvr', 'semisfl')},
    'fed_shvr strong': {'augment.supervised': 'strong'},
    'fedavg rules': {
        'data.client_labels': 200,
        'federation.partition': 'dirichlet_class',
        'federation.alpha': 1.0,
        'federation.labeled_partition': 'dirichlet_class',
        'federation.labeled_alpha': 0.5,
    },
    'fedavg classes': {'federation.partition': 'classes', 'federation.mu': 0, 'local.epochs': 1},
}
FORMS = QUICK | SLOW


@pytest.fixture(scope='module', autouse=True)
def quick_programs():
    with pytest.MonkeyPatch.context() as patch, programs.recorded(patch):
        toy_scenes.small_model(patch)
        yield


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
    choices = choices_of(keys.fields()[key])
    if key in VALUES:
        return VALUES[key]
    if choices:
        return next(choice for choice in choices if choice not in (value, 'auto'))
    if isinstance(value, bool):
        return not value
    return (value / 2 or 0.5) if isinstance(value, float) else (value or 0) + 2


@functools.cache
def made(form):
    config = configuration(form)
    config_lib.check(config)
    return programs.Made(config)


@functools.cache
def findings(form, thorough=False):
    """{key: 'refused', 'idle', 'read', 'read, but idle' or 'not read'}; `thorough`: programs are compared for all."""
    base, found = made(form), {}
    method = algorithms.get(base.built.config.algorithm)
    resolved = config_lib.flatten(base.built.config)
    for key in config_lib.flatten(configuration(form)):
        if exempt(key) or (method.dense and key == 'model.batch_norm_variance'):  # the stand-in has one estimator
            continue
        try:
            changed = configuration(form, **{key: other(key, resolved.get(key))}) if key in resolved else None
            if changed is None:  # an option of another method
                continue
            config_lib.check(changed)
            with_other = programs.Made(changed)
        except UserError:
            found[key] = 'refused'
            continue
        idle, differs = key in ignored_keys.find(changed), base.differs(with_other)
        if differs == 'the model' and idle and not thorough:
            differs = ''  # its projection head, or an estimator that it has no use for
        compares = idle or thorough or ('none' in form and key.split('.')[0] == method.option_group)
        if differs and compares and base.same(with_other):
            differs = ''
        found[key] = {(True, False): 'idle', (True, True): 'read, but idle', (False, True): 'read'}.get(
            (idle, bool(differs)), 'not read'
        )
    return found


def check_findings(found):
    assert {key for key, finding in found.items() if finding == 'not read'} == set()
    assert {key for key, finding in found.items() if finding == 'read, but idle'} <= APPARENT


@pytest.mark.parametrize('form', QUICK)
def test_a_key_is_read_or_its_user_is_told(form):
    check_findings(findings(form))


@pytest.mark.slow
@pytest.mark.parametrize('form', SLOW)
def test_so_it_is_with_other_options(form):
    check_findings(findings(form))


@pytest.mark.slow
@pytest.mark.parametrize('form', list(FORMS)[::8])
def test_a_key_that_is_read_changes_the_program(form):
    """All forms would take half an hour."""
    check_findings(findings(form, thorough=True))


# Read with BatchNorm alone, which no model here has (tests/test_static_batch_norm.py, test_semisfl.py, test_semifl.py)
OF_BATCH_NORM = {'client_teacher_bn', 'model.batch_norm_variance', 'semifl.batch_norm_data'}


def test_every_key_is_read_in_some_form():
    """So no exception, and no second value, hides one."""
    read = {key for form in QUICK for key, finding in findings(form).items() if finding == 'read'}
    known = {key for key in config_lib.flatten(default.get_config()) if not exempt(key)}
    assert known - read == OF_BATCH_NORM


def trained(config):
    """State and metrics of three rounds."""
    sim = simulation.Simulation(programs.Made(config).built)
    carry, metrics = sim.init(), []
    for _ in range(3):
        carry, values = sim.round(carry)
        metrics.append(values)
    return jax.tree.map(np.asarray, (carry.state, metrics))


TRAINED = {  # key -> forms in which it is idle, forms in which it is not
    'threshold': ('fed_shvr/fed_sh/fed_svr/fedavg mean_teacher/fedavg supervised', 'fedavg/fedavg pseudo_label'),
    'augment.operations': ('fed_shvr/fed_sh/fed_svr/fedavg mean_teacher', 'fedavg/fed_shvr strong'),
    'augment.cutout': ('fed_shvr/fedavg pseudo_label/m_fed', 'semisfl'),
    'augment.randaugment': ('fed_shvr', 'fedavg'),
    'augment.magnitude': ('fed_shvr', 'fedavg'),
    'consistency_weight': ('fedavg supervised/fedavg none/fedavg mean_teacher none/semisfl unlabeled none', 'fedavg'),
    'clustering_weight': ('semisfl unlabeled none', 'semisfl none/semisfl'),
    'contrastive_weight': ('supervised_only', 'semisfl'),
    'fed_shvr.alpha0': ('fed_shvr none', 'fed_shvr'),
    'fed_shvr.alpha1': ('fed_shvr none', 'fed_shvr'),
    'fed_shvr.ramp_rounds': ('fed_shvr none', 'fed_shvr'),
    'local.ramp_rounds': ('fedavg pseudo_label none', 'fedavg pseudo_label'),
    'fedmatch.lambda_a': ('fedmatch none', 'fedmatch'),
    'fedmatch.lambda_i': ('fedmatch no_helpers', ''),
    'local.teacher_decay': ('fedavg mean_teacher none', 'fedavg mean_teacher'),
    'uda.temperature': ('fedavg uda none', 'fedavg uda'),
    'queue_size': ('fedavg', 'semisfl'),
    'nesterov': ('fedavg without momentum', 'fedavg'),
}
CASES = [
    (key, form, has_effect)
    for key, both in TRAINED.items()
    for has_effect, forms in enumerate(both)
    for form in filter(None, forms.split('/'))
]


def test_what_is_idle_in_appearance_is_trained():
    assert set(TRAINED) >= APPARENT


@pytest.mark.slow
@pytest.mark.parametrize(('key', 'form', 'has_effect'), CASES)
def test_two_values_train_alike_where_a_key_is_idle_alone(key, form, has_effect):
    config = configuration(form)
    changed = configuration(form, **{key: other(key, config_lib.flatten(config)[key])})
    assert (key in ignored_keys.find(changed)) != has_effect
    one, two = (jax.tree.leaves(trained(each)) for each in (config, changed))
    alike = all(np.array_equal(a, b, equal_nan=True) for a, b in zip(one, two, strict=True))
    assert alike == (not has_effect)
