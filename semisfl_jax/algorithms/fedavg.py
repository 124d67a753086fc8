"""FedAvg (McMahan et al., 2017) on labeled clients, or on unlabeled ones with a semi-supervised loss.

That loss is FixMatch's, UDA's, pseudo-labeling or mean teacher. FedProx adds its proximal term to any of them.
"""

import dataclasses
from typing import Any

from jax import Array

from semisfl_jax import core, costs
from semisfl_jax.algorithms import Flat, Look, Method, ranges, register
from semisfl_jax.algorithms.fed_shvr import fed_shvr_protocol
from semisfl_jax.algorithms.feddure import FIXMATCH, feddure_protocol
from semisfl_jax.core import rng, trees


def fedavg(
    model: core.SplitModel, views: core.Views, hparams: core.HParams, axis: core.ClientAxis, prox: float = 0.0
) -> core.Algorithm:
    """Builds FedAvg; with `prox` above 0, FedProx.

    One round: K_s steps of cross-entropy at the server, if it has labels (K_s above 0); the whole model goes to the
    cohort; each client minimizes its objective; the server averages the models.

    `local.objective` selects the objective of a client:
      'supervised': cross-entropy on its labeled images. With all labels at the clients, this is the upper bound called
        FedAvg-SL in the literature.
      'fixmatch', 'uda', 'pseudo_label', 'mean_teacher': consistency on its unlabeled images, and cross-entropy on the
        labeled ones if it has any (`core.build_objective`).

    Args:
      model: the model, which is not split.
      views: augmentations and normalization.
      hparams: the hyper-parameters.
      axis: the clients of a round.
      prox: mu of FedProx.

    Returns:
      The method as pure functions. Its headline model is the averaged model.
    """
    server = core.build_server(model, views, hparams)
    objective, kind = core.build_objective(model, views, hparams), hparams.local.objective
    has_teacher = kind == 'mean_teacher'

    def client(
        inputs: core.ClientInput, client_state: Any, state: core.State, federation: core.Federation, lr: Array
    ) -> core.ClientOutput:
        start = core.trainable(state.student)

        def loss(parameters: core.SplitParams, student: core.SplitParams, teacher: Any, t: Array) -> core.LossValue:
            batch = core.read(federation, inputs, t)
            labeler = {'pseudo_label': state.student, 'mean_teacher': teacher}.get(kind, student)
            value, aux = objective(parameters, student, labeler, batch, rng.fold(inputs.key, t), state.round)
            if core.nonzero(prox):
                value = value + 0.5 * prox * trees.squared_distance(parameters, start)
            return value, aux

        def update_teacher(teacher: Any, student: core.SplitParams) -> Any:
            return core.ema(teacher, student, hparams.local.teacher_decay) if has_teacher else teacher

        teacher, tx = state.student if has_teacher else (), core.optimizer(hparams, lr)
        return core.ClientOutput(
            *core.local_sgd(loss, state.student, client_state, tx, inputs.steps, teacher, update_teacher)
        )

    local = core.build_local(client, hparams, axis)

    def init(key: Array) -> core.State:
        return core.init_state(key, model, teacher=False, clients=core.init_clients(key, model, hparams))

    round_ = core.server_then_clients(hparams, server, local)
    return core.Algorithm(init, round_, core.predict_by(model, views, 'student'), headline='student')


def fedprox(model: core.SplitModel, views: core.Views, hparams: core.HParams, axis: core.ClientAxis) -> core.Algorithm:
    """Builds FedProx.

    Every client adds mu / 2 ||theta - theta_g||^2 to its objective in FedAvg, with mu = `local.prox` and theta_g the
    parameters it received.

    Args:
      model: the model, which is not split.
      views: augmentations and normalization.
      hparams: the hyper-parameters.
      axis: the clients of a round.

    Returns:
      The method as pure functions. Its headline model is the averaged model.
    """
    return fedavg(model, views, hparams, axis, prox=hparams.local.prox)


# --- the record


def official(flat: Flat) -> dict[str, Any]:
    """Returns the settings of the paper that compares FedAvg and FedProx under this objective.

    That paper is FedDure's for labels alone, FixMatch and UDA, and Fed-SHVR's for 'pseudo_label' (Fed-Pseudo) and
    'mean_teacher' (Fed-MT).

    mu of FedProx is 0.01. FedDure's paper does not give the number of unlabeled images in a batch of FixMatch; as in
    its setting for FedDure, we take 10 beside 10 labeled ones. UDA uses the values of its authors' scripts for CIFAR-10
    and SVHN.

    Fed-Pseudo and Fed-MT take as many steps as Fed-SHVR, and the weight of their unlabeled loss rises over as many
    rounds. Fed-Pseudo uses all pseudo-labels, as its paper names no threshold. Fed-MT has the weight and the noise of
    the authors of Mean Teacher.
    """
    objective = flat['local.objective']
    if objective in ('pseudo_label', 'mean_teacher'):
        values = fed_shvr_protocol(flat) | {'local.steps': 'longest', 'local.ramp_rounds': 25}
        return values | (MEAN_TEACHER if objective == 'mean_teacher' else {'threshold': 0.0})
    values = feddure_protocol(flat)
    if flat['data.client_labels'] != -1:
        values['data.client_labels'] = flat['data.num_labeled']
    if objective == 'fixmatch':
        values |= FIXMATCH
    elif objective == 'uda':
        values |= {'batch_size': 10 * (1 + 7), 'federation.mu': 7, 'threshold': 0.8}
        values |= {'uda.temperature': 0.4, 'uda.tsa': 'off'}
    return values


# The values in Tarvainen and Valpola's code for CIFAR-10 and SVHN
MEAN_TEACHER = {'local.objective': 'mean_teacher', 'consistency_weight': 100.0, 'local.input_noise': 0.15}


def price(context: costs.CostContext) -> costs.ClientCost:
    """Bills one model down and one up.

    With 'pseudo_label' a client labels each unlabeled image once a round, with other objectives in every batch.
    """
    objective = context.hparams.local.objective
    cost = costs.whole_model(context, pseudo_labels=objective not in ('supervised', 'pseudo_label'))
    once = context.unlabeled * context.pieces.whole_work.forward if objective == 'pseudo_label' else 0
    return cost._replace(setup_work=once)


METHOD = Method(
    name='fedavg',
    build=fedavg,
    title='FedAvg',
    source='McMahan et al., Communication-Efficient Learning of Deep Networks from Decentralized Data, AISTATS 2017',
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
    ranges={'lr': ranges.LR, 'threshold': ranges.THRESHOLD, 'consistency_weight': ranges.WEIGHT},
    variants={
        'fixmatch': {},
        'uda': {'local.objective': 'uda'},
        'supervised': {'local.objective': 'supervised', 'data.client_labels': -1},
    },
)
register(METHOD)
register(
    dataclasses.replace(
        METHOD,
        name='fedprox',
        build=fedprox,
        title='FedProx',
        source='Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020',
        uses=(*METHOD.uses, 'prox'),
        look=Look('#332288', '<', '-.'),
        ranges={**METHOD.ranges, 'local.prox': ranges.log(1e-3, 1.0)},  # its paper tries 0.001, 0.01, 0.1 and 1
        variants={'': {}},
    )
)
