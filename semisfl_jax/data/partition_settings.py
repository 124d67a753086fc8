"""The keys of a configuration that a partition is made from, and which of their values can be."""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict

from semisfl_jax.core.errors import UserError
from semisfl_jax.data import partitioners

# Settings that are present only where they are in use, and what stands for their absence
UNUSED = {'labeled_alpha': 0.0, 'num_unlabeled': 0, 'mismatch': -1.0, 'num_validation': 0}


def settings(config: ConfigDict) -> dict:
    """The settings of a configuration that determine a partition, in JSON types.

    Those about labeled images at the clients are present only if there are such images, and those of a rule only if it
    is used. If all images are dealt to clients that know their labels (`client_labels` -1 without a server phase), no
    image is set aside as labeled, and `num_labeled` is 0; unless labeled images have a rule of their own
    (`labeled_partition`): then `num_labeled` are dealt by it, and `all_labels` says that the others are known, too.
    """
    fed, count = config.federation, config.data.client_labels
    all_at_clients = count == -1 and config.k_s == 0
    apart = all_at_clients and fed.labeled_partition != 'same'  # dealt as if they alone were labeled
    if apart:
        of_labels = {'labeled_partition': fed.labeled_partition, 'all_labels': True}
    elif count > 0:
        of_labels = {'labeled_partition': fed.labeled_partition} if fed.mu else {'ignored_labeled': fed.ignored_labeled}
    else:
        of_labels = {}
    rule, labeled_rule = fed.partition, of_labels.get('labeled_partition', 'same')
    own_alpha = labeled_rule not in partitioners.WITHOUT_ALPHA and fed.labeled_alpha != 0
    needs_alpha = {rule} if own_alpha else {rule, labeled_rule}
    used: dict[str, Any] = {'labeled_alpha': float(fed.labeled_alpha)} if own_alpha else {}
    if rule == partitioners.SIZED:
        used |= {'min_images': fed.min_images, 'max_images': fed.max_images}
    if labeled_rule == partitioners.SIZED:
        used['min_labeled'] = fed.min_labeled
    if 'classes' in (rule, labeled_rule):
        used['classes_per_client'] = fed.classes_per_client
    if config.data.num_validation:
        used['num_validation'] = config.data.num_validation
    if config.data.num_unlabeled:
        used['num_unlabeled'] = config.data.num_unlabeled
    if fed.mismatch != UNUSED['mismatch']:
        used['mismatch'] = float(fed.mismatch)
    if config.data.tasks:
        used |= {'tasks': list(config.data.tasks), 'task_images': config.data.task_images}
    return {
        'seed': config.seed if config.data.partition_seed == -1 else config.data.partition_seed,
        'num_labeled': 0 if all_at_clients and not apart else config.data.num_labeled,
        'labeled_split': config.data.labeled_split,
        'client_labels': config.data.num_labeled if apart else 0 if count == -1 else count,  # -1 moves no image
        'use_client_labels': fed.mu > 0 or apart,
        'num_clients': fed.num_clients,
        'partition': rule,
        'alpha': None if needs_alpha <= set(partitioners.WITHOUT_ALPHA) else float(fed.alpha),
        **of_labels,
        **used,
    }


def check(config: ConfigDict) -> None:
    """Raises UserError if keys about clients' images conflict, as far as that needs no data."""
    fed, data = config.federation, config.data
    if data.eval_split == 'validation' and not data.num_validation:
        raise UserError(
            "config.data.eval_split='validation': no images are held out for it (data.num_validation=0); say how many, "
            'such as --config.data.num_validation=1000'
        )
    if 0 < fed.max_images < fed.min_images:
        raise UserError(
            f'config.federation.min_images={fed.min_images} is above federation.max_images={fed.max_images} (0: none)'
        )
    if 0 < data.num_unlabeled < fed.num_clients:
        raise UserError(
            f'config.data.num_unlabeled={data.num_unlabeled} is less than federation.num_clients={fed.num_clients}; '
            'every client needs an image, use more, or 0 for all'
        )
    if -1 < fed.mismatch < 0:
        raise UserError(f'config.federation.mismatch={fed.mismatch}: use a share in [0, 1], or -1 for none')
    if fed.mismatch >= 0 and not (data.client_labels > 0 and fed.mu > 0):
        raise UserError(
            f'config.federation.mismatch={fed.mismatch} needs labels at the clients: use data.client_labels and '
            'federation.mu above 0, or -1'
        )
    tasks = len(data.tasks)
    for key, value in (('num_clients', fed.num_clients), ('num_active', fed.num_active)):
        if tasks and value % tasks:
            raise UserError(
                f'config.federation.{key}={value} cannot be shared equally by {tasks} tasks (data.tasks): use a '
                f'multiple of {tasks}, such as {-(-value // tasks) * tasks}'
            )
