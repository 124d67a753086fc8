"""FedAvg (McMahan et al., 2017) on labeled clients, or with FixMatch, UDA, pseudo-labels or mean teachers on unlabeled
clients."""

from __future__ import annotations

import dataclasses
from typing import Any

from semisfl_jax import core, costs
from semisfl_jax.algorithms.fed_shvr import of_fed_shvr
from semisfl_jax.algorithms.feddure import FIXMATCH, of_feddure
from semisfl_jax.algorithms.method import Flat, Look, Method
from semisfl_jax.algorithms.ranges import LR, THRESHOLD, WEIGHT, log
from semisfl_jax.algorithms.registry import register
from semisfl_jax.core import rng, trees
from semisfl_jax.core.hparams import HParams, optimizer
from semisfl_jax.core.state import trainable
from semisfl_jax.core.teacher import ema
from semisfl_jax.core.types import Algorithm, Array, ClientAxis, Federation, LossValue, SplitParams, Views
from semisfl_jax.models import SplitModel


def fedavg(model: SplitModel, views: Views, hparams: HParams, axis: ClientAxis, prox: float = 0.0) -> Algorithm:
    """Builds FedAvg; with `prox` above 0, FedProx.

    One round: K_s steps of cross-entropy at the server, if it has labels (K_s above 0); the whole model goes to the
    cohort; each client minimizes its objective; the server averages the models.

    The objective of a client, `local.objective`:
      'supervised': cross-entropy on its labeled images. With all labels at the clients, this is the upper bound
        called FedAvg-SL in the literature.
      'fixmatch', 'uda', 'pseudo_label', 'mean_teacher': consistency on its unlabeled images, and cross-entropy on the
        labeled ones if it has any (`core.build_objective`).

    The headline model is the averaged model.
    `prox` is mu of FedProx. Other arguments as in `semisfl`; the model is not split.
    """
    server = core.build_server(model, views, hparams)
    objective, kind = core.build_objective(model, views, hparams), hparams.local.objective
    has_teacher = kind == 'mean_teacher'

    def client(
        inputs: core.ClientInput, client_state: Any, state: core.State, federation: Federation, lr: Array
    ) -> core.ClientOutput:
        start = trainable(state.student)

        def loss(parameters: SplitParams, student: SplitParams, teacher: Any, t: Array) -> LossValue:
            batch = core.read(federation, inputs, t)
            labeler = {'pseudo_label': state.student, 'mean_teacher': teacher}.get(kind, student)
            value, aux = objective(parameters, student, labeler, batch, rng.fold(inputs.key, t), state.round)
            if prox:
                value = value + 0.5 * prox * trees.squared_distance(parameters, start)
            return value, aux

        def follow(teacher: Any, student: SplitParams) -> Any:
            return ema(teacher, student, hparams.local.teacher_decay) if has_teacher else teacher

        teacher, tx = state.student if has_teacher else (), optimizer(hparams, lr)
        return core.ClientOutput(*core.local_sgd(loss, state.student, client_state, tx, inputs.steps, teacher, follow))

    local = core.build_local(client, hparams, axis)

    def init(key: Array) -> core.State:
        return core.init_state(key, model, teacher=False, clients=core.init_clients(key, model, hparams))

    round_ = core.server_then_clients(hparams, server, local)
    return Algorithm(init, round_, core.predict_by(model, views, 'student'), headline='student')


def official(flat: Flat) -> dict[str, Any]:
    """FedAvg and FedProx as in the paper that compares them with this objective.

    That is FedDure's for labels alone, FixMatch and UDA, and Fed-SHVR's for 'pseudo_label' (Fed-Pseudo) and
    'mean_teacher' (Fed-MT).

    mu of FedProx is 0.01. The number of unlabeled images in a batch of FixMatch is not given; as in FedDure's own
    setting, it is 10 beside 10 labeled ones. UDA uses the values from its authors' scripts for CIFAR-10 and SVHN.

    Fed-Pseudo and Fed-MT make as many steps as Fed-SHVR, and the weight of their unlabeled loss rises in as many
    rounds. Fed-Pseudo uses all pseudo-labels; its paper names no threshold. Fed-MT has the weight and the noise of the
    authors of Mean Teacher.
    """
    objective = flat['local.objective']
    if objective in ('pseudo_label', 'mean_teacher'):
        values = of_fed_shvr(flat) | {'local.steps': 'longest', 'local.ramp_rounds': 25}
        return values | (MEAN_TEACHER if objective == 'mean_teacher' else {'threshold': 0.0})
    values = of_feddure(flat)
    if flat['data.client_labels'] != -1:
        values['data.client_labels'] = flat['data.num_labeled']
    if objective == 'fixmatch':
        values |= FIXMATCH
    elif objective == 'uda':
        values |= {'batch_size': 10 * (1 + 7), 'federation.mu': 7, 'threshold': 0.8}
        values |= {'uda.temperature': 0.4, 'uda.tsa': 'off'}
    return values


# As Tarvainen and Valpola's code has them, for CIFAR-10 and SVHN
MEAN_TEACHER = {'local.objective': 'mean_teacher', 'consistency_weight': 100.0, 'local.input_noise': 0.15}


def price(context: costs.CostContext) -> costs.ClientCost:
    """One model down, one up. With 'pseudo_label' each unlabeled image is labeled once a round, else in
    every batch."""
    objective = context.hparams.local.objective
    cost = costs.whole_model(context, pseudo_labels=objective not in ('supervised', 'pseudo_label'))
    once = context.unlabeled * context.pieces.whole_work.forward if objective == 'pseudo_label' else 0
    return cost._replace(setup_work=once)


METHOD = register(
    Method(
        name='fedavg',
        build=fedavg,
        title='FedAvg',
        source='McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, '
        'AISTATS 2017',
        uses=(
            'pseudo-labels',
            'local',
            'steps',
            'kept optimizers',
            'objective',
            'uda',
            'mean teacher',
            'consistency',
            'pre-rounds',
            'sampling',
        ),
        server='optional',
        labels_alone=lambda flat: flat['local.objective'] == 'supervised',
        by_images=True,
        official=official,
        price=price,
        look=Look('#56B4E9', 'X', '--'),
        ranges={'lr': LR, 'threshold': THRESHOLD, 'consistency_weight': WEIGHT},
        variants={
            'fixmatch': {},
            'uda': {'local.objective': 'uda'},
            'supervised': {'local.objective': 'supervised', 'data.client_labels': -1},
        },
    )
)


def fedprox(model: SplitModel, views: Views, hparams: HParams, axis: ClientAxis) -> Algorithm:
    """Builds FedProx: every client adds mu / 2 ||theta - theta_g||^2 to the objective of FedAvg, with mu = `local.prox`
    and theta_g the parameters it received."""
    return fedavg(model, views, hparams, axis, prox=hparams.local.prox)


register(
    dataclasses.replace(
        METHOD,
        name='fedprox',
        build=fedprox,
        title='FedProx',
        source='Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020',
        uses=(*METHOD.uses, 'prox'),
        look=Look('#332288', '<', '-.'),
        ranges={**METHOD.ranges, 'local.prox': log(1e-3, 1.0)},  # its paper tries 0.001, 0.01, 0.1 and 1
        variants={'': {}},
    )
)
