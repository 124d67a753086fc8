"""What all sides compute: federations of FedAvg's paper and of two frameworks' own benchmarks, each also as a check."""

from __future__ import annotations

import dataclasses

DROPOUT = '_dropout'  # ends the names of models with dropout; without it they have none


@dataclasses.dataclass(frozen=True)
class Workload:
    """FedAvg with plain SGD, no augmentation, and an average weighted by images."""

    name: str
    title: str
    model: str  # config.model.name
    clients: int  # in total, each with equally many images
    images: int  # per client
    active: int  # clients in a round
    steps: int  # of a client in a round
    rounds: int = 0
    batch_size: int = 32
    lr: float = 0.02
    data: str = 'mnist'  # config.data.name: images have its shape
    partition: str = 'uniform'  # config.federation.partition
    evaluate: int = 0  # rounds from one evaluation of the server's model to the next; 0: it is never evaluated
    peers: tuple[str, ...] = ('pytorch', 'flower', 'blazefl', 'pfl', 'fedjax', 'fluke')


CNN = Workload('cnn', "McMahan's CNN", 'mcmahan_cnn', clients=100, images=600, active=10, steps=20)
MLP = Workload('mlp', 'MLP 784-200-10', 'mlp200', clients=1000, images=60, active=100, steps=5)
# benchmarks/image_classification/configs/baseline.yaml of pfl-research: one pass, evaluated every ten rounds
OF_PFL = {'batch_size': 10, 'lr': 0.1, 'data': 'cifar10', 'evaluate': 10, 'peers': ('pytorch', 'pfl')}
PFL = Workload('pfl_cifar10', "pfl's CNN", 'pfl_cnn' + DROPOUT, clients=1000, images=50, active=50, steps=5, **OF_PFL)
# benchmarks/blazefl-case of BlazeFL: five passes, evaluated after every round. Its 200 shards give a client one or two
# classes, here it is always two
OF_BLAZEFL = {'batch_size': 50, 'lr': 0.1, 'data': 'cifar10', 'partition': 'classes', 'evaluate': 1}
OF_BLAZEFL |= {'peers': ('pytorch', 'blazefl', 'blazefl_processes')}
LENET = Workload(
    'blazefl_cnn', "BlazeFL's CNN", 'blazefl_cnn', clients=100, images=500, active=100, steps=50, **OF_BLAZEFL
)
RESNET = dataclasses.replace(LENET, name='blazefl_resnet18', title="BlazeFL's ResNet-18", model='blazefl_resnet18')
WORKLOADS = {workload.name: workload for workload in (CNN, MLP, PFL, LENET, RESNET)}


def timed(name: str, rounds: int, quick: bool) -> Workload:
    """A workload to be measured; with `quick` at a fraction of its size, to see that everything runs.

    It has more than the given rounds if they are too few for an evaluation after the first two.
    """
    workload = WORKLOADS[name]
    workload = dataclasses.replace(workload, rounds=max(rounds, 2 + workload.evaluate))
    if not quick:
        return workload
    clients = workload.clients // 10
    return dataclasses.replace(workload, clients=clients, active=min(workload.active // 5, clients), steps=3)


def check(workload: Workload) -> Workload:
    """The same training on data whose order cannot matter: all clients are active, each with one batch of images.

    Few steps, because the kinks of ReLU and pooling amplify differences in rounding: of the CNN in PyTorch, float32 and
    float64 are 1 % apart after 15 steps (3 rounds of 5), and 0.01 % after 6. Small steps for the same reason, and no
    dropout, which each side draws itself. ResNet-18 has two steps: it is 2 % apart after 6, and 0.03 % after 2.
    """
    steps, rounds = (1, 2) if workload.model == RESNET.model else (2, 3)
    return dataclasses.replace(
        workload,
        model=workload.model.removesuffix(DROPOUT),
        clients=10,
        active=10,
        images=workload.batch_size,
        steps=steps,
        rounds=rounds,
        lr=Workload.lr,
        partition='uniform',
    )
