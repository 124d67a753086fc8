"""Traditional federated learning in the comparison of M-Fed: FedAvg within every task, nothing across tasks."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from semisfl_jax.algorithms import m_fed
from semisfl_jax.algorithms.method import Look
from semisfl_jax.algorithms.ranges import LR
from semisfl_jax.algorithms.registry import register
from semisfl_jax.algorithms.task_model import TaskModel
from semisfl_jax.core.hparams import HParams
from semisfl_jax.core.types import LOCAL_CLIENTS, Algorithm, ClientAxis, Views


def mfed_fl(models: Sequence[TaskModel], views: Views, hparams: HParams, axis: ClientAxis = LOCAL_CLIENTS) -> Algorithm:
    """Builds M-Fed with lambda_0 = 0: as many separate runs of FedAvg as there are tasks. Arguments as in `m_fed`."""
    return m_fed.build(models, views, hparams, axis, m_fed.MFedOptions(weight=0.0))


METHOD = register(
    dataclasses.replace(
        m_fed.METHOD,
        name='mfed_fl',
        build=mfed_fl,
        title='FL per task',
        options=None,  # lambda_0 is 0
        group='',
        check=m_fed.check,
        metrics={},
        look=Look('#33A0A0', 's', '--'),
        ranges={'lr': LR},
    )
)
