"""Fed-SVR, the ablation of Fed-SHVR without normalized averaging: sharpened labels and variance reduction."""

from __future__ import annotations

import dataclasses

from semisfl_jax.algorithms import fed_shvr
from semisfl_jax.algorithms.method import Look
from semisfl_jax.algorithms.registry import register
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.types import LOCAL_CLIENTS, Algorithm, ClientAxis, Views
from semisfl_jax.models import SplitModel


def fed_svr(model: SplitModel, views: Views, hparams: HParams, axis: ClientAxis = LOCAL_CLIENTS) -> Algorithm:
    """Builds Fed-SVR: Fed-SHVR that averages models, with the correction of VRL-SGD (Liang et al., 2019) for clients
    with unequal numbers of steps. Everything else is as in `fed_shvr.build`."""
    return fed_shvr.build(fed_shvr.Form(corrected=True, normalized=False), model, views, hparams, axis)


METHOD = register(
    dataclasses.replace(
        fed_shvr.METHOD,
        name='fed_svr',
        build=fed_svr,
        title='Fed-SVR',
        source=f'an ablation of {fed_shvr.METHOD.source}',
        group='fed_shvr',
        look=Look('#AA0011', '*', '-.'),
    )
)
