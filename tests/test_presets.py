"""The 'official' setting: what it fills in, and that the command line goes before."""

import numpy as np
import pytest

from configs import default
from semisfl_jax import algorithms, data
from semisfl_jax import config as config_lib
from semisfl_jax.config import command_line
from semisfl_jax.core.errors import UserError
from tests import needs, partitions, runs

OFFICIAL_METHODS = [name for name, method in algorithms.METHODS.items() if not isinstance(method.official, str)]
OFFICIAL = ('--config.setting=official', '--config.algorithm=fedprox')


def parse(*words):
    config = command_line.parse(['launch.py', runs.DIGITS, *words]).config
    config_lib.check(config)
    return config


def test_the_setting_of_the_federated_baselines():
    """FedDure's paper: 5 of 100 clients, one local epoch, batches of 10 labeled images, Adam with 5e-4, 200 rounds."""
    config = parse(*OFFICIAL)
    assert (config.federation.num_clients, config.federation.num_active, config.rounds) == (100, 5, 200)
    assert (config.local.epochs, config.local.weighting, config.local.prox) == (1, 'samples', 0.01)
    assert (config.optimizer, config.lr, config.lr_min, config.weight_decay) == ('adam', 5e-4, 5e-4, 0.0)
    assert (config.data.num_labeled, config.data.client_labels, config.k_s) == (40, 40, 0)  # the data keep their labels
    assert config.batch_size // (1 + config.federation.mu) == 10
    assert config.threshold == 0.85
    assert config.is_locked
    uda = parse(*OFFICIAL, '--config.local.objective=uda')
    # The authors' scripts for CIFAR-10 and SVHN: confidence 0.8, temperature 0.4, 7 unlabeled images per labeled one.
    assert (uda.threshold, uda.uda.temperature, uda.uda.tsa) == (0.8, 0.4, 'off')
    assert (uda.federation.mu, uda.batch_size) == (7, 10 + 7 * 10)
    assert (config.federation.mu, config.batch_size, config.uda.temperature) == (1, 10 + 10, 1.0)  # FixMatch
    supervised = parse(*OFFICIAL, '--config.local.objective=supervised', '--config.data.client_labels=-1')
    assert (supervised.batch_size, supervised.data.client_labels, supervised.threshold) == (10, -1, 0.95)


def test_the_setting_of_feddure():
    """That of its comparison with FixMatch, and splits by class where there are Dirichlet splits."""
    config = parse('--config.setting=official', '--config.algorithm=feddure', '--config.federation.partition=uniform')
    assert (config.federation.num_clients, config.federation.num_active, config.rounds) == (100, 5, 200)
    assert (config.local.epochs, config.local.weighting) == (1, 'samples')
    assert (config.optimizer, config.lr, config.lr_min, config.weight_decay) == ('adam', 5e-4, 5e-4, 0.0)
    assert (config.data.client_labels, config.k_s, config.batch_size, config.federation.mu) == (40, 0, 20, 1)
    options = config.feddure
    assert (options.coarse, options.fine, options.hidden) == (True, True, 128)
    assert (options.coarse_rate, options.fine_rate) == (1.0, 1.0)
    assert 'federation.alpha' not in config.official_keys
    words = ('--config.setting=official', '--config.algorithm=feddure')
    split = parse(*words).federation  # the paper's (DIR, DIR), as the digits have a Dirichlet split
    assert (split.partition, split.alpha, split.labeled_partition) == ('dirichlet_class', 0.5, 'dirichlet_class')
    split = parse(*words, '--config.federation.labeled_partition=uniform').federation  # (IID, DIR)
    assert (split.partition, split.alpha, split.labeled_partition) == ('dirichlet_class', 0.5, 'uniform')


@pytest.mark.parametrize('algorithm', ['fed_shvr', 'fedavg'])
def test_the_setting_of_fed_shvr_and_its_baselines(algorithm):
    """32 labeled and 32 unlabeled images, two passes, SGD with 0.01, everybody; Dir_10(0.1), CIFAR-10 Dir_40(0.025)."""
    words = ('--config.setting=official', f'--config.algorithm={algorithm}')
    for objective in ('pseudo_label', 'mean_teacher') if algorithm == 'fedavg' else ('fixmatch',):
        given = (*words, f'--config.local.objective={objective}') if algorithm == 'fedavg' else words
        config = parse(*given)
        config_lib.check(config)
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


def test_another_rule_has_values_of_its_own(caplog):
    """0.025 is the concentration of a draw over 40 clients; SemiSFL's rule draws over classes."""
    words = ('--config.setting=official', '--config.algorithm=fed_shvr', '--config.data.name=cifar10')
    given = parse(*words, '--config.data.num_labeled=4000', '--config.federation.partition=dirichlet').federation
    assert (given.partition, given.alpha, given.labeled_partition, given.min_images) == ('dirichlet', 0.1, 'same', 10)
    assert given.num_clients == 40
    (message,) = caplog.messages
    assert "'dirichlet' is not the rule of the papers of fed_shvr" in message
    assert 'federation.alpha, federation.labeled_partition' in message
    assert "with 'dirichlet_class' it sets them" in message
    caplog.clear()
    given = parse(*words, '--config.data.num_labeled=4000', '--config.federation.partition=dirichlet_class').federation
    assert (given.alpha, given.labeled_partition, given.min_images) == (0.025, 'classes', 0)
    assert parse(*words, '--config.data.num_labeled=4000', '--config.federation.alpha=1').federation.alpha == 1
    assert not caplog.messages


def test_the_setting_of_splitfed():
    """The authors' scripts: 5 clients, all active, Adam with 1e-4, 200 rounds; one epoch a round in batches of 256."""
    config = parse('--config.setting=official', '--config.algorithm=splitfed', '--config.splitfed.version=v2')
    assert (config.federation.num_clients, config.federation.num_active, config.rounds) == (5, 5, 200)
    assert (config.local.epochs, config.local.weighting, config.batch_size) == (1, 'uniform', 256)
    assert (config.optimizer, config.lr, config.lr_min, config.weight_decay) == ('adam', 1e-4, 1e-4, 0.0)
    assert (config.data.client_labels, config.k_s, config.splitfed.version) == (-1, 0, 'v2')


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


@pytest.mark.parametrize('words', [(), OFFICIAL])
def test_the_official_keys_of_a_user_are_refused(words):
    with pytest.raises(UserError, match=r"official_keys holds 'lr': setting='official' fills it in.*leave it out"):
        parse(*words, '--config.official_keys=lr')


def test_harmonized_changes_nothing():
    config, plain = (parse('--config.algorithm=fedavg', *words) for words in ((), ('--config.setting=harmonized',)))
    assert config_lib.flatten(config) == config_lib.flatten(plain)
    assert (config.lr, config.k_s, config.optimizer) == (0.02, 20, 'sgd')


def test_the_setting_of_semifl():
    """The authors' code: 10 of 100 clients, 5 epochs everywhere, lr 0.03 to 0 over 800 rounds, clients first."""
    words = ('--config.setting=official', '--config.algorithm=semifl')
    config = parse(*words)
    assert (config.federation.num_clients, config.federation.num_active) == (100, 10)
    assert (config.rounds, config.lr_rounds, config.lr, config.lr_min) == (800, 800, 0.03, 0.0)
    assert (config.momentum, config.nesterov, config.weight_decay, config.threshold) == (0.9, True, 5e-4, 0.95)
    assert (config.local.epochs, config.batch_size, config.local.optimizer_state) == (5, 10, 'kept')
    assert (config.semifl.order, config.semifl.mixup_alpha, config.semifl.clip_norm) == ('clients_first', 0.75, 1.0)
    assert (config.semifl.global_momentum, config.semifl.batch_norm_data) == (0.5, 'all')
    assert (config.data.labeled_split, config.augment.supervised) == ('balanced', 'weak')
    assert (config.server_batch_size, config.k_s, config.k_s_rule) == (10, 5 * 4, 'fixed')  # 40 labels
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
    # fedmatch leaves the labels where they are
    expected = {'fedmatch': (1e-3, 0, 40), 'splitfed': (1e-4, -1, 0), 'semifl': (0.03, 0, 80)}
    expected |= dict.fromkeys(('fed_shvr', 'fed_sh', 'fed_svr'), (0.01, 4000, 0))
    expected |= dict.fromkeys(('m_fed', 'mfed_fl', 'mfed_local'), (0.02, -1, 0))  # theirs is that of the configuration
    assert (config.lr, config.data.client_labels, config.k_s) == expected.get(name, (5e-4, 4000, 0))


def test_the_setting_of_fedmatch():
    """FedMatch's paper and code, labels at the server and at the clients."""
    words = ('--config.setting=official', '--config.algorithm=fedmatch')
    config = parse(*words)
    assert (config.federation.num_clients, config.federation.num_active, config.rounds) == (100, 5, 200)
    assert (config.optimizer, config.lr, config.lr_min, config.momentum) == ('sgd', 1e-3, 1e-3, 0.0)
    assert (config.k_s, config.k_s_rule, config.batch_size, config.local.epochs) == (1, 'fixed', 100, 1)
    options = config.fedmatch
    assert (options.lambda_s, options.lambda_a, options.lambda_i, options.lambda_l2, options.lambda_l1) == (
        10.0,
        1e-2,
        1e-2,
        10.0,
        1e-5,
    )
    assert (options.helpers, options.helper_every, options.psi_start) == (2, 10, 0.2)
    assert (options.l1_threshold, options.delta_threshold) == (1e-5, 1e-5)
    config = parse(*words, '--config.data.client_labels=40')
    assert (config.data.client_labels, config.k_s, config.batch_size // (1 + config.federation.mu)) == (40, 0, 10)
    assert parse(*words, '--config.data.client_labels=20').k_s == 1
    assert (config.fedmatch.lambda_l1, config.fedmatch.l1_threshold) == (1e-4, 5e-6)
    assert config.fedmatch.delta_threshold == 5e-5
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
