"""Fed-SVR, the ablation of Fed-SHVR without normalized averaging: sharpened labels and variance reduction."""

from __future__ import annotations

from semisfl_jax.algorithms.fed_shvr import (
    CORRECTION_NORM,
    RANGES,
    SOURCE,
    USES,
    FedShvr,
    Form,
    build,
    check,
    official,
    price,
)
from semisfl_jax.algorithms.method import Look, Method
from semisfl_jax.algorithms.registry import register
from semisfl_jax.hparams import HParams
from semisfl_jax.models import SplitModel
from semisfl_jax.types import LOCAL_CLIENTS, Algorithm, ClientAxis, Views


def fed_svr(model: SplitModel, views: Views, hparams: HParams, axis: ClientAxis = LOCAL_CLIENTS) -> Algorithm:
    """Builds Fed-SVR: Fed-SHVR that averages models, with the correction of VRL-SGD (Liang et al., 2019) for clients
    with unequal numbers of steps. Everything else is as in `fed_shvr.build`."""
    return build(Form(corrected=True, normalized=False), model, views, hparams, axis)


METHOD = register(
    Method(
        name='fed_svr',
        build=fed_svr,
        title='Fed-SVR',
        source=f'an ablation of {SOURCE}',
        options=FedShvr,
        group='fed_shvr',
        uses=USES,
        server='optional',
        steps='longest',
        by_images=True,
        check=check,
        official=official,
        price=price,
        metrics={'correction_norm': CORRECTION_NORM},
        look=Look('#AA0011', '*', '-.'),
        ranges=RANGES,
    )
)
