"""What all sides compute: two federations of FedAvg's paper and one on which they must agree."""

from __future__ import annotations

import dataclasses

LR = 0.02


@dataclasses.dataclass(frozen=True)
class Workload:
    """FedAvg with plain SGD, no augmentation, no evaluation, and an average weighted by images."""

    name: str
    title: str
    model: str  # config.model.name
    clients: int  # in total, each with equally many images
    images: int  # per client, 28x28x1
    active: int  # clients in a round
    steps: int  # of a client in a round
    rounds: int
    batch_size: int = 32


def timed(name: str, rounds: int, quick: bool) -> Workload:
    """A workload to be measured; with `quick` at a fraction of its size, to see that everything runs."""
    cnn = Workload('cnn', "McMahan's CNN", 'mcmahan_cnn', clients=100, images=600, active=10, steps=20, rounds=rounds)
    mlp = Workload('mlp', 'MLP 784-200-10', 'mlp200', clients=1000, images=60, active=100, steps=5, rounds=rounds)
    workload = {'cnn': cnn, 'mlp': mlp}[name]
    if not quick:
        return workload
    return dataclasses.replace(workload, clients=workload.clients // 10, active=workload.active // 5, steps=3)


def check(workload: Workload) -> Workload:
    """The same training on data whose order cannot matter: all clients are active, each with one batch of images.

    Few steps, because the kinks of ReLU and pooling amplify differences in rounding: of the CNN in PyTorch, float32 and
    float64 are 1 % apart after 15 steps (3 rounds of 5), and 0.01 % after 6.
    """
    return dataclasses.replace(workload, clients=10, active=10, images=workload.batch_size, steps=2, rounds=3)


NAMES = ('cnn', 'mlp')
