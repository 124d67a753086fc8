"""Options of SemiFL, and what its functions are built from."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import optax

from semisfl_jax.algorithms.options import option
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.types import Array, Federation, SplitParams, Views
from semisfl_jax.models import SplitModel


@dataclasses.dataclass(frozen=True)
class SemiFL:
    """`config.semifl`."""

    order: str = option(
        'clients_first',
        "'clients_first', as in the authors' code: clients, average, the server's steps, evaluation | 'server_first': "
        "evaluation right after the average, a few points lower; the model after the server's steps is then also "
        'evaluated (after_server_accuracy), and stored for this, which takes the memory of one more model',
        choices=('server_first', 'clients_first'),
    )
    mixup_alpha: float = option(0.75, 'a of the distribution Beta(a, a) of the mixup weights', above=0)
    clip_norm: float = option(
        1.0, 'maximum norm of gradients, at server and clients; larger ones are scaled down; 0: no limit', at_least=0
    )
    global_momentum: float = option(
        0.5,
        "momentum across rounds of the server's step toward the clients' average; 0: it takes the average itself",
        at_least=0,
        below=1,
    )
    max_passes: int = option(
        5,
        "limits the k_u iterations to this many passes over a client's confident images, the paper's epochs; otherwise "
        'a client with only a few such images would memorize them. 0: no limit',
        at_least=0,
    )
    batch_norm_data: str = option(
        'all',
        "whose images the BatchNorm statistics are computed from: 'all' | 'server'",
        choices=('all', 'server'),
        ignorable=True,  # a data set's configuration sets it where its images stay on the host
    )
    pass_batch_size: int = option(
        250,
        'batch size of passes over whole sets of images: for labeling and for BatchNorm statistics',
        at_least=1,
    )


class Parts(NamedTuple):
    """What SemiFL is built from: the first argument of its functions."""

    model: SplitModel
    views: Views
    hparams: HParams
    statistics: Callable[[Array, SplitParams, Federation], SplitParams]  # recomputes those of BatchNorm
    global_step: optax.GradientTransformation  # the server's step to the clients' average

    @property
    def options(self) -> SemiFL:
        """`config.semifl`."""
        return self.hparams.options

    @property
    def server_first(self) -> bool:
        """Whether the server trains before the clients."""
        return self.options.order == 'server_first'
