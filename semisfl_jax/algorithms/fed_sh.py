"""Fed-SH, the ablation of Fed-SHVR without variance reduction: sharpened labels and normalized averaging."""

from __future__ import annotations

import dataclasses

from semisfl_jax.algorithms import fed_shvr
from semisfl_jax.algorithms.method import Look
from semisfl_jax.algorithms.registry import register
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.types import LOCAL_CLIENTS, Algorithm, ClientAxis, Views
from semisfl_jax.models import SplitModel


def fed_sh(model: SplitModel, views: Views, hparams: HParams, axis: ClientAxis = LOCAL_CLIENTS) -> Algorithm:
    """Builds Fed-SH: Fed-SHVR with d_k = 0, so FedNova (Wang et al., 2020) on its objective. Everything else is as in
    `fed_shvr.build`."""
    return fed_shvr.build(fed_shvr.Form(corrected=False, normalized=True), model, views, hparams, axis)


METHOD = register(
    dataclasses.replace(
        fed_shvr.METHOD,
        name='fed_sh',
        build=fed_sh,
        title='Fed-SH',
        source=f'an ablation of {fed_shvr.METHOD.source}',
        group='fed_shvr',
        price=fed_shvr.price_uncorrected,
        metrics={},
        look=Look('#99BB66', 'h', ':'),
    )
)
