"""Toy data sets, configurations and files for tests of partitions, what clients hold, and the loop of the authors."""

import numpy as np

from configs.default import get_config
from semisfl_jax import data

SKEWED = [300, 170, 120, 61, 49]


def dataset_of(sizes, unknown=0, seed=0, checksum='c0ffee'):
    """A data set with so many images per class, in random order, and `unknown` ones of unknown label after them."""
    labels = np.repeat(np.arange(len(sizes)), sizes)
    labels = np.append(np.random.default_rng(seed).permutation(labels), np.full(unknown, -1)).astype(np.int32)
    images = np.zeros((len(labels), 1, 1, 1), np.uint8)
    return data.Dataset(
        'toy', images, labels, images[:5], labels[:5], len(sizes), (0.5,), (0.5,), fake=False, checksum=checksum
    )


def config_of(**changes):
    """`num_clients=5` sets whatever key ends in num_clients."""
    config = get_config()
    config.data.num_labeled = 100
    config.federation.num_clients, config.federation.num_active = 7, 3
    for key, value in changes.items():
        for section in (config, config.data, config.federation):
            if key in section:
                section[key] = value
                break
        else:
            raise KeyError(key)
    return config


def class_counts(labels, rows, classes):
    return np.array([np.sum(labels[rows] == k) for k in range(classes)])


def held(dataset, made, labeled=False):
    """[N, K] counted here."""
    parts = made.client_labeled_index if labeled else made.client_index
    return np.array([[np.sum(dataset.train_labels[rows] == k) for k in range(dataset.num_classes)] for rows in parts])


def loop(generator, sizes, clients, alpha, least, most):
    """The loop of SemiFL's code (data.py) and FedDure's, in NumPy: lists of images, class by class. The upper bound is
    ours, and so is to draw again where all shares are of full clients: there the code would divide by 0."""
    total, draws = sum(sizes), 0
    while True:
        draws += 1
        split, counts = [[] for _ in range(clients)], []
        shares = [generator.dirichlet(np.repeat(alpha, clients)) for _ in sizes]
        for k, size in enumerate(sizes):
            share = shares[k] * np.array([len(images) < total / clients for images in split])
            if not share.sum():
                break
            share = share / share.sum()
            cuts = (np.cumsum(share) * size).astype(int)[:-1]
            parts = np.split(np.arange(size), cuts)
            counts.append([len(part) for part in parts])
            split = [images + part.tolist() for images, part in zip(split, parts, strict=True)]
        else:
            lengths = [len(images) for images in split]
            if least <= min(lengths) and max(lengths) <= (most or total):
                return np.array(counts).T, draws


def rewrite(path, **arrays):
    with np.load(path) as file:
        content = dict(file)
    np.savez(path, **(content | arrays))
