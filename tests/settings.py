"""Configurations for tests, with a few keys changed."""

import importlib

from configs import default

NAMES = ('digits', 'mnist', 'fashion_mnist', 'cifar10', 'svhn', 'stl10', 'cinic10', 'image100')


def get(name, settings='paper'):
    return importlib.import_module(f'configs.{name}').get_config(settings)


def changed(**changes):
    """The default configuration with changes; dots in keys are written as two underscores."""
    config = default.get_config()
    config.update_from_flattened_dict({key.replace('__', '.'): value for key, value in changes.items()})
    return config


def data_options(**changes):
    """The default `config.data` with changes."""
    options = default.get_config().data
    options.update(changes)
    return options
