"""Protocols that a paper uses for its own method and for its baselines: values of 'official' settings."""

from __future__ import annotations

from typing import Any

from semisfl_jax.algorithms.method import Flat

DIGITS = ('digits', 'mnist')  # a mirrored digit is a different digit or no digit at all
FIXMATCH = {'batch_size': 10 + 10, 'federation.mu': 1, 'threshold': 0.85}  # in the comparison of FedDure's paper


def of_feddure(flat: Flat) -> dict[str, Any]:
    """The protocol of the comparison of FedDure's paper (Bai et al., 2024), equal for all its methods.

    100 clients, 5 active, one local epoch in batches of 10, Adam with 5e-4, 200 rounds, averages weighted by images. A
    Dirichlet partition draws over clients per class with 0.5, as FedDure's code does; labels that would follow it
    have a draw of their own, as in the paper's (DIR, DIR). Labeled images are zero-padded and cropped, flipped, and
    cut out there; here they use the weak view.
    """
    values = {
        'federation.num_clients': 100,
        'federation.num_active': 5,
        'data.labeled_split': 'balanced',
        'rounds': 200,
        'lr_rounds': 200,
        'k_s': 0,
        'pre_rounds': 0,
        'optimizer': 'adam',
        'momentum': 0.9,
        'nesterov': False,
        'lr': 5e-4,
        'lr_min': 5e-4,
        'weight_decay': 0.0,
        'batch_size': 10,
        'local.epochs': 1,
        'local.weighting': 'samples',
        'model.batch_norm_variance': 'unbiased',  # PyTorch's
        'augment.supervised': 'weak',
        'augment.flip': flat['data.name'] not in DIGITS,
        'augment.crop': 0.125,
    }
    by_dirichlet = ('dirichlet', 'dirichlet_class')
    if flat['federation.partition'] in by_dirichlet:
        values |= {'federation.partition': 'dirichlet_class', 'federation.alpha': 0.5}
        if flat['federation.labeled_partition'] in ('same', *by_dirichlet):
            values['federation.labeled_partition'] = 'dirichlet_class'
    return values


def of_fed_shvr(flat: Flat) -> dict[str, Any]:
    """The protocol of Fed-SHVR's experiments (Wang et al., 2021, Section V), equal for all its methods.

    All clients in every round, 32 labeled and 32 unlabeled images in a batch, two passes, plain SGD with 0.01. MNIST
    has 10 clients and 100 rounds, CIFAR-10 40 clients, 20,000 unlabeled images and 1,000 rounds; other data sets get
    MNIST's values. With a Dirichlet `federation.partition`, unlabeled images follow Dir_10(0.1) over clients (CIFAR-10:
    Dir_40(0.025)), and labeled ones are of two digits (six classes of CIFAR-10) per client. On MNIST the sizes of
    clients are bounded so that tau_k lies in 270 to 500, the range that the paper gives; on CIFAR-10 there is no bound,
    because of 20,000 images some clients get none or one by such a draw (docs/ledger.md).

    The paper does not mention momentum, weight decay and augmentation: there is none, but flips and crops on CIFAR-10.
    """
    cifar = flat['data.name'] == 'cifar10'
    values = {
        'federation.num_clients': 40 if cifar else 10,
        'federation.num_active': 40 if cifar else 10,
        'federation.mu': 1,
        'data.labeled_split': 'balanced',
        'data.client_labels': flat['data.num_labeled'],
        'rounds': 1000 if cifar else 100,
        'k_s': 0,
        'pre_rounds': 0,
        'optimizer': 'sgd',
        'lr': 0.01,
        'lr_min': 0.01,
        'momentum': 0.0,
        'nesterov': False,
        'weight_decay': 0.0,
        'batch_size': 64,
        'local.epochs': 2,
        'local.weighting': 'samples',
        'model.batch_norm_variance': 'unbiased',  # PyTorch's
        'augment.supervised': 'weak',
    }
    values |= {'augment.flip': cifar, 'augment.crop': 0.125 if cifar else 0.0}
    if cifar:
        values['data.num_unlabeled'] = 20_000
    if flat['federation.partition'] in ('dirichlet', 'dirichlet_class'):
        values |= {
            'federation.partition': 'dirichlet_class',
            'federation.alpha': 0.025 if cifar else 0.1,
            'federation.labeled_partition': 'classes',
            'federation.classes_per_client': 6 if cifar else 2,
        }
        bounds = {'mnist': (4320, 8015), 'cifar10': (0, 0)}  # on others, the configuration's
        if flat['data.name'] in bounds:
            values['federation.min_images'], values['federation.max_images'] = bounds[flat['data.name']]
    return values
