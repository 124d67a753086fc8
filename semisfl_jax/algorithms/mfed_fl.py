"""Traditional federated learning in the comparison of M-Fed: FedAvg within every task, nothing across tasks."""

from __future__ import annotations

from collections.abc import Sequence

from semisfl_jax.algorithms import m_fed
from semisfl_jax.algorithms.method import Look, Method
from semisfl_jax.algorithms.registry import register
from semisfl_jax.hparams import HParams
from semisfl_jax.phases.tasks import TaskModel
from semisfl_jax.types import LOCAL_CLIENTS, Algorithm, ClientAxis, Views


def mfed_fl(models: Sequence[TaskModel], views: Views, hparams: HParams, axis: ClientAxis = LOCAL_CLIENTS) -> Algorithm:
    """Builds M-Fed with lambda_0 = 0: as many separate runs of FedAvg as there are tasks. Arguments as in `m_fed`."""
    return m_fed.build(models, views, hparams, axis, weight=0.0)


METHOD = register(
    Method(
        name='mfed_fl',
        build=mfed_fl,
        title='FL per task',
        source=m_fed.METHOD.source,
        uses=m_fed.METHOD.uses,
        needs=m_fed.NEEDS,
        server='none',
        labels_alone=lambda flat: True,
        by_images=True,
        dense=True,
        in_parts=True,
        check=m_fed.check,
        official=m_fed.METHOD.official,
        price=m_fed.price,
        look=Look('#33A0A0', 's', '--'),
    )
)
