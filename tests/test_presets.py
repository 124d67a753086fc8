"""The 'official' setting: what it fills in, and that the command line goes before."""

import numpy as np
import pytest

from configs import default
from semisfl_jax import algorithms, data
from semisfl_jax import config as config_lib
from semisfl_jax.config import command_line
from tests import needs, partitions, runs

OFFICIAL_METHODS = [name for name, method in algorithms.METHODS.items() if not isinstance(method.official, str)]
OFFICIAL = ('--config.setting=official', '--config.algorithm=fedprox')


def parse(*words):
    config = command_line.parse(['launch.py', runs.DIGITS, *words]).config
    config_lib.check(config)
    return config


# Of the papers: clients, active, rounds, epochs, batch size, optimizer, lr, lr_min, weight decay, K_s with 40 labels
COMMON = 100, 5, 200, 1, 20, 'adam', 5e-4, 5e-4, 0.0, 0
SHVR = 10, 10, 100, 2, 64, 'sgd', 0.01, 0.01, 0.0, 0
NUMBERS = {
    **dict.fromkeys(('fedavg', 'fedprox', 'feddure'), COMMON),
    **dict.fromkeys(('fed_shvr', 'fed_sh', 'fed_svr'), SHVR),
    'fedmatch': (100, 5, 200, 1, 100, 'sgd', 1e-3, 1e-3, 0.0, 1),
    'splitfed': (5, 5, 200, 1, 256, 'adam', 1e-4, 1e-4, 0.0, 0),
    'semifl': (100, 10, 800, 5, 10, 'sgd', 0.03, 0.0, 5e-4, 5 * 4),
}


@pytest.mark.parametrize('name', NUMBERS)
def test_the_numbers_of_the_papers(name):
    config = parse('--config.setting=official', f'--config.algorithm={name}')
    of_clients = config.federation.num_clients, config.federation.num_active, config.rounds
    of_steps = config.local.epochs, config.batch_size, config.optimizer, config.lr, config.lr_min, config.weight_decay
    assert (*of_clients, *of_steps, config.k_s) == NUMBERS[name]
    assert config.is_locked


def test_the_setting_of_the_federated_baselines():
    """The data keep their labels. UDA as in the authors' scripts for CIFAR-10 and SVHN, 7 unlabeled images per labeled
    one; FixMatch with 10 of each."""
    config = parse(*OFFICIAL)
    assert (config.local.weighting, config.local.prox, config.threshold) == ('samples', 0.01, 0.85)
    assert (config.data.num_labeled, config.data.client_labels) == (40, 40)
    assert (config.federation.mu, config.batch_size, config.uda.temperature) == (1, 10 + 10, 1.0)
    uda = parse(*OFFICIAL, '--config.local.objective=uda')
    assert (uda.threshold, uda.uda.temperature, uda.uda.tsa) == (0.8, 0.4, 'off')
    assert (uda.federation.mu, uda.batch_size) == (7, 10 + 7 * 10)
    supervised = parse(*OFFICIAL, '--config.local.objective=supervised', '--config.data.client_labels=-1')
    assert (supervised.batch_size, supervised.data.client_labels, supervised.threshold) == (10, -1, 0.95)


def test_the_splits_of_feddure():
    """By class where there are Dirichlet splits."""
    words = ('--config.setting=official', '--config.algorithm=feddure')
    assert 'federation.alpha' not in parse(*words, '--config.federation.partition=uniform').official_keys
    split = parse(*words).federation  # the paper's (DIR, DIR), as the digits have a Dirichlet split
    assert (split.partition, split.alpha, split.labeled_partition) == ('dirichlet_class', 0.5, 'dirichlet_class')
    split = parse(*words, '--config.federation.labeled_partition=uniform').federation  # (IID, DIR)
    assert (split.partition, split.alpha, split.labeled_partition) == ('dirichlet_class', 0.5, 'uniform')


@pytest.mark.parametrize('words', [('fed_shvr',), ('fedavg', 'pseudo_label'), ('fedavg', 'mean_teacher')])
def test_the_setting_of_fed_shvr_and_its_baselines(words):
    """Dir_10(0.1), CIFAR-10 Dir_40(0.025)."""
    given = ['--config.setting=official', f'--config.algorithm={words[0]}']
    given += [f'--config.local.objective={objective}' for objective in words[1:]]
    config = parse(*given)
    assert (config.batch_size, config.federation.mu, config.local.epochs, config.lr) == (64, 1, 2, 0.01)
    assert (config.federation.num_active, config.federation.alpha, config.rounds) == (10, 0.1, 100)
    assert config_lib.resolve(config).local.steps == 'longest'
    cifar = parse(*given, '--config.data.name=cifar10', '--config.data.num_labeled=4000')
    assert (cifar.federation.num_active, cifar.federation.alpha, cifar.rounds) == (40, 0.025, 1000)
    assert (cifar.data.num_unlabeled, cifar.federation.classes_per_client) == (20_000, 6)


def test_the_split_of_fed_shvr_on_cifar_can_be_made():
    """20,000 images by Dir_40(0.025), 100 labels of six classes at each client, for five seeds. By such draws some
    clients have very few images: no bound of the paper is known, and 10 were met by none of most seeds' draws."""
    words = ('--config.setting=official', '--config.algorithm=fed_shvr', '--config.data.name=cifar10')
    cifar = parse(*words, '--config.data.num_labeled=4000')
    dataset = partitions.dataset_of([5000] * 10)
    for seed in range(5):
        with cifar.unlocked():
            cifar.seed = seed
        made = data.make_partition(dataset, cifar)
        images = [len(rows) for rows in made.client_index]
        assert (len(images), sum(images), min(images)) == (40, 20_000, 1)
        labels = [np.unique(dataset.train_labels[rows], return_counts=True) for rows in made.client_labeled_index]
        assert {(len(classes), counts.sum()) for classes, counts in labels} == {(6, 100)}


def test_what_a_preset_sets_does_not_depend_on_the_file():
    """configs/fedavg.py has neither momentum, which is Adam's beta_1, nor flips and crops."""
    file, words = ('launch.py', f'--config={runs.ROOT}/configs/fedavg.py'), ('--config.setting=official',)
    feddure = ['--config.algorithm=feddure', '--config.data.num_labeled=500']
    config = command_line.parse([*file, *words, *feddure]).config
    assert (config.optimizer, config.momentum, config.augment.crop) == ('adam', 0.9, 0.125)
    assert not config.augment.flip  # MNIST
    config = command_line.parse([*file, *words, *feddure, '--config.data.name=fashion_mnist']).config
    assert config.augment.flip
    config = command_line.parse([*file, *words, '--config.algorithm=splitfed']).config
    assert (config.optimizer, config.momentum) == ('adam', 0.9)


def test_another_rule_has_values_of_its_own():
    """0.025 is the concentration of a draw over 40 clients; SemiSFL's rule draws over classes."""
    words = ('--config.setting=official', '--config.algorithm=fed_shvr', '--config.data.name=cifar10')
    given = parse(*words, '--config.data.num_labeled=4000', '--config.federation.partition=dirichlet').federation
    assert (given.partition, given.alpha, given.labeled_partition, given.min_images) == ('dirichlet', 0.1, 'same', 10)
    assert given.num_clients == 40
    given = parse(*words, '--config.data.num_labeled=4000', '--config.federation.partition=dirichlet_class').federation
    assert (given.alpha, given.labeled_partition, given.min_images) == (0.025, 'classes', 0)
    assert parse(*words, '--config.data.num_labeled=4000', '--config.federation.alpha=1').federation.alpha == 1


@pytest.mark.parametrize('name', ['m_fed', 'mfed_fl', 'mfed_local'])
@pytest.mark.parametrize(('base', 'counts'), [('pascal_context', (20, 5, 20)), ('coco_panoptic', (10, 1, 12))])
def test_the_setting_of_m_fed(name, base, counts):
    """Five clients a task, all active; PASCAL-Context: four tasks, 5 epochs, 20 rounds; COCO: here two, 1 epoch, 12
    rounds. So have the configurations, and what the paper does not give stays theirs."""
    words = ['launch.py', f'--config={runs.ROOT}/configs/{base}.py', f'--config.algorithm={name}']
    for given in ((), ('--config.setting=official',)):
        config = command_line.parse([*words, *given]).config
        config_lib.check(config)
        federation = config.federation
        assert (federation.num_clients, config.local.epochs, config.rounds) == counts
        assert (federation.num_active, federation.partition) == (counts[0], 'uniform')
        assert (config.optimizer, config.lr, config.lr_schedule, config.batch_size) == ('adam', 1e-4, 'poly', 12)
        assert (config.mfed.weight, config.mfed.growth, config.mfed.max_weight) == (1e-4, 1.05, 1.0)
        moved = config.augment.flip, config.augment.scale_min, config.augment.scale_max, config.augment.rotate
        assert moved == {'pascal_context': (True, 0.75, 1.25, 20.0), 'coco_panoptic': (True, 1.0, 1.0, 0.0)}[base]
    scenes = f'--config={runs.ROOT}/configs/digit_scenes.py'
    config = command_line.parse(['launch.py', scenes, *words[2:], '--config.setting=official']).config
    assert (config.federation.num_clients, config.local.epochs, config.rounds) == (35, 5, 20)  # seven tasks
    assert (config.lr, config.batch_size, config.lr_rounds) == (3e-3, 8, 0)


def test_the_command_line_goes_before():
    config = parse(*OFFICIAL, '--config.lr=0.01', '--config.federation.num_clients=20', '--config.threshold=0.5')
    assert (config.lr, config.federation.num_clients, config.threshold) == (0.01, 20, 0.5)
    assert (config.lr_min, config.federation.num_active) == (5e-4, 5)
    same = parse(*OFFICIAL, '--config.lr=0.02', '--config.rounds=150')  # given as they were
    assert (same.lr, same.rounds) == (0.02, 150)


def test_harmonized_changes_nothing():
    config, plain = (parse('--config.algorithm=fedavg', *words) for words in ((), ('--config.setting=harmonized',)))
    assert config_lib.flatten(config) == config_lib.flatten(plain)
    assert (config.lr, config.k_s, config.optimizer) == (0.02, 20, 'sgd')


def test_the_steps_of_semifl_follow_the_labels():
    words = ('--config.setting=official', '--config.algorithm=semifl')
    assert parse(*words).server_batch_size == 10  # 40 labels
    more = parse(*words, '--config.data.num_labeled=1010')  # 4 full batches and a part of one
    assert (more.server_batch_size, more.k_s) == (250, 5 * 5)


@pytest.mark.parametrize('name', ['semifl', 'fedavg', 'fedprox'])
def test_a_dirichlet_partition_is_that_of_the_authors(name):
    """One draw over clients for each class, and at least 10 images each; other partitions stay."""
    words = ('--config.setting=official', f'--config.algorithm={name}')
    config = parse(*words)
    assert (config.federation.partition, config.federation.min_images) == ('dirichlet_class', 10)
    assert 'federation.partition' in config.official_keys
    assert parse(*words, '--config.federation.partition=dirichlet').federation.partition == 'dirichlet'
    assert parse(f'--config.algorithm={name}').federation.partition == 'dirichlet'  # harmonized
    uniform = default.get_config()
    uniform.algorithm, uniform.setting = name, 'official'
    config_lib.apply_setting(uniform)
    assert uniform.federation.partition == 'uniform'


@pytest.mark.parametrize('name', OFFICIAL_METHODS)
def test_a_program_applies_it_itself(name):
    config = default.get_config()
    if algorithms.get(name).dense:
        config.update_from_flattened_dict(needs.changes(name))
    config.algorithm, config.setting = name, 'official'
    config_lib.apply_setting(config)
    config_lib.check(config)
    labels = {'fedmatch': 0, 'semifl': 0}  # stay where they are
    labels |= dict.fromkeys(('splitfed', 'm_fed', 'mfed_fl', 'mfed_local'), -1)
    assert config.data.client_labels == labels.get(name, 4000)


def test_the_setting_of_fedmatch_follows_the_labels():
    """Labels at the server and at the clients."""
    words = ('--config.setting=official', '--config.algorithm=fedmatch')
    options = parse(*words).fedmatch
    assert (options.lambda_l1, options.l1_threshold, options.delta_threshold) == (1e-5, 1e-5, 1e-5)
    config = parse(*words, '--config.data.client_labels=40')
    assert (config.data.client_labels, config.k_s, config.batch_size // (1 + config.federation.mu)) == (40, 0, 10)
    options = config.fedmatch
    assert (options.lambda_l1, options.l1_threshold, options.delta_threshold) == (1e-4, 5e-6, 5e-5)
    assert parse(*words, '--config.data.client_labels=20').k_s == 1
    assert parse('--config.algorithm=fedmatch').fedmatch.delta_threshold == 0.0


@pytest.mark.parametrize('name', OFFICIAL_METHODS)
def test_no_official_setting_has_rounds_of_supervised_training_before(name):
    """They are of SemiSFL's code alone, on IMAGE-100."""
    words = (f'--config={runs.ROOT}/configs/image100.py', f'--config.algorithm={name}')
    assert command_line.parse(['launch.py', *words]).config.pre_rounds == 20
    assert command_line.parse(['launch.py', *words, '--config.setting=official']).config.pre_rounds == 0


def test_what_has_no_official_setting_says_so(capsys, tmp_path):
    assert runs.run(tmp_path / 'run', setting='official') == 2
    assert (
        'semisfl has no such setting, because the configurations already hold its own values' in capsys.readouterr().err
    )
