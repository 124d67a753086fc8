"""Options of FedMatch, the values of its authors, and what its functions are built from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

from semisfl_jax.algorithms.method import Flat
from semisfl_jax.algorithms.options import option
from semisfl_jax.core.errors import UserError
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.types import Views
from semisfl_jax.models import SplitModel


@dataclasses.dataclass(frozen=True)
class FedMatch:
    """`config.fedmatch`. Parameters are sigma + psi: labels train sigma, unlabeled images train psi."""

    helpers: int = option(
        2,
        "H, the number of other clients whose models help to label a client's images; the server then stores the psi "
        'of every client (num_clients times the memory of the model). 0: no helpers, and no such memory',
        at_least=0,
    )
    helper_every: int = option(10, 'interval in rounds at which helpers are selected and sent', at_least=1)
    helpers_persist: bool = option(
        False,
        'True: clients keep their helpers until they are sent new ones (H times that memory in addition); False: '
        "helpers are used only in the round in which they are sent, as in the authors' code",
    )
    lambda_s: float = option(1.0, 'weight of the cross-entropy of labeled images', at_least=0)
    lambda_a: float = option(
        1e-2, "weight of the cross-entropy of agreement labels, as in the authors' code", at_least=0
    )
    lambda_i: float = option(1e-2, "weight of the inter-client consistency, as in the authors' code", at_least=0)
    lambda_l2: float = option(
        0.05,
        'weight of || sigma - psi ||^2. The authors use 10 with an effective step size (lr / (1 - momentum)) 200 times '
        'smaller; 0.05 pulls psi at the same rate. With 10, psi would follow all of the movement of sigma within one '
        'round, and overshoot',
        at_least=0,
    )
    lambda_l1: float = option(1e-5, 'weight of | psi |', at_least=0)
    l1_threshold: float = option(1e-5, 'entries of psi of at most this magnitude count as 0 in evaluation', at_least=0)
    delta_threshold: float = option(
        0.0,
        'entries that a client changed by at most this much are not sent, and the server averages its own value '
        'instead; in this comparison, entries of psi of at most l1_threshold count as 0. 0: all entries are sent',
        at_least=0,
    )
    psi_start: float = option(0.2, 'psi before the first round, as a share of sigma', at_least=0)


class Parts(NamedTuple):
    """What FedMatch is built from: the first argument of the functions below."""

    model: SplitModel
    views: Views
    hparams: HParams
    label_loss: Callable[..., Any]  # `disjoint.build_label_loss`, trains sigma
    agreement_loss: Callable[..., Any]  # `disjoint.build_agreement_loss`, trains psi

    @property
    def options(self) -> FedMatch:
        """`config.fedmatch`."""
        return self.hparams.options

    @property
    def labels_at_clients(self) -> bool:
        """Whether clients train sigma."""
        return self.hparams.labeled_rows > 0


def official(flat: Flat) -> dict[str, Any]:
    """FedMatch as run by its authors' code, with the labels where the configuration puts them.

    100 clients, 5 active, one local epoch, 200 rounds, SGD with 1e-3 and neither momentum nor weight decay (theirs is
    declared but never added), threshold 0.85 (the paper's; the code has 0.75), their loss weights. Labels at
    the server: one pass over them per round, in batches of 100. Labels at the clients: 10 per batch along with 100
    unlabeled images. In their code all labels are on one side; if the server keeps some here, it trains on them.

    Unlabeled images are augmented only by the RandAugment of their file, labeled ones not at all. Only the entries of
    an upload that changed by more than 5e-5 (labels at the clients) or 1e-5 (at the server) are sent.

    Departures: their learning rate is divided by 3 when a validation loss has not improved for 5 or 20 evaluations; no
    images are held out for that here, so it is constant. One pass of a client is over its unlabeled images, in full
    batches. Images are normalized as in every method; theirs are divided by 255. docs/ledger.md lists each.
    """
    at_clients = flat['data.client_labels'] > 0
    server_labels = flat['data.num_labeled'] - max(flat['data.client_labels'], 0)
    values = {
        'federation.num_clients': 100,
        'federation.num_active': 5,
        'data.labeled_split': 'balanced',
        'rounds': 200,
        'lr_rounds': 200,
        'k_s': -(-server_labels // 100),
        'k_s_rule': 'fixed',
        'pre_rounds': 0,
        'nesterov': False,
        'momentum': 0.0,
        'lr': 1e-3,
        'lr_min': 1e-3,
        'weight_decay': 0.0,
        'threshold': 0.85,
        'batch_size': 110 if at_clients else 100,
        'server_batch_size': 100,
        'local.epochs': 1,
        'augment.randaugment': 'fedmatch',
        'augment.operations': 6,
        'augment.cutout': 0,
        'augment.flip': False,
        'augment.crop': 0.0,
        'augment.supervised': 'weak',  # without flip and crop, the image itself
        'fedmatch.lambda_s': 10.0,
        'fedmatch.lambda_a': 1e-2,
        'fedmatch.lambda_i': 1e-2,
        'fedmatch.lambda_l2': 10.0,
        'fedmatch.lambda_l1': 1e-4 if at_clients else 1e-5,
        'fedmatch.l1_threshold': 5e-6 if at_clients else 1e-5,
        'fedmatch.delta_threshold': 5e-5 if at_clients else 1e-5,
    }
    if at_clients:
        values['federation.mu'] = 10
    return values


def check(flat: Flat) -> None:
    """Raises UserError if there are too few clients for the helpers, or no helpers to keep."""
    helpers, persist = flat['fedmatch.helpers'], flat['fedmatch.helpers_persist']
    clients, every = flat['federation.num_clients'], flat['fedmatch.helper_every']
    if helpers >= clients:
        raise UserError(
            f'config.fedmatch.helpers={helpers} is more than the number of other clients '
            f'(federation.num_clients={clients}); use at most {clients - 1}'
        )
    if persist and (not helpers or every == 1):
        raise UserError(
            f'config.fedmatch.helpers_persist=True keeps helpers for rounds without new ones, but there are none with '
            f'fedmatch.helpers={helpers}, fedmatch.helper_every={every}; use False'
        )
