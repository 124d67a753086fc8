"""Fed-SH, the ablation of Fed-SHVR without variance reduction: sharpened labels and normalized averaging."""

from __future__ import annotations

from semisfl_jax.algorithms.fed_shvr import (
    RANGES,
    SOURCE,
    USES,
    FedShvr,
    Form,
    build,
    check,
    official,
    price_uncorrected,
)
from semisfl_jax.algorithms.method import Look, Method
from semisfl_jax.algorithms.registry import register
from semisfl_jax.hparams import HParams
from semisfl_jax.models import SplitModel
from semisfl_jax.types import LOCAL_CLIENTS, Algorithm, ClientAxis, Views


def fed_sh(model: SplitModel, views: Views, hparams: HParams, axis: ClientAxis = LOCAL_CLIENTS) -> Algorithm:
    """Builds Fed-SH: Fed-SHVR with d_k = 0, so FedNova (Wang et al., 2020) on its objective. Everything else is as in
    `fed_shvr.build`."""
    return build(Form(corrected=False, normalized=True), model, views, hparams, axis)


METHOD = register(
    Method(
        name='fed_sh',
        build=fed_sh,
        title='Fed-SH',
        source=f'an ablation of {SOURCE}',
        options=FedShvr,
        group='fed_shvr',
        uses=USES,
        server='optional',
        steps='longest',
        by_images=True,
        check=check,
        official=official,
        price=price_uncorrected,
        look=Look('#99BB66', 'h', ':'),
        ranges=RANGES,
    )
)
