"""fluke: its FedAvg, with clients that keep nothing between their rounds."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import torch

from benchmarks.peers import task as task_lib
from benchmarks.peers import torch_parts

if find_spec('torchvision'):  # fluke imports it, for data sets that are not used here
    torch_parts.import_torchvision()

from fluke import FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server
from fluke.utils import FederationObserver


class Drawn(FastDataLoader):
    """A client's images as the steps of a round: an epoch of fluke's need not be a whole number of batches."""

    def __init__(self, images: torch.Tensor, labels: torch.Tensor, task: task_lib.Task, generator: np.random.Generator):
        super().__init__(images, labels, num_labels=10, batch_size=task.batch_size)
        self.task, self.generator = task, generator

    def __iter__(self):
        images, labels = self.tensors
        for rows in torch.from_numpy(self.task.batches(self.generator)):
            yield images[rows], labels[rows]

    def __len__(self) -> int:
        return self.task.steps


class Drawing(Server):
    """The server, which takes the cohorts of the task."""

    cohorts: list[list[int]]

    def get_eligible_clients(self, eligible_perc: float):
        return [self.clients[client] for client in self.cohorts.pop(0)]


class Report(FederationObserver):
    """Reports every round."""

    def end_round(self, round: int) -> None:
        task_lib.done(round)


def main() -> None:
    folder, weights = task_lib.arguments()
    task = task_lib.load(folder)
    torch.set_num_threads(task.threads)
    environment = FlukeENV()
    environment.set_device('cpu')
    environment.set_inmemory(True)
    environment.set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    generator, optimizer = np.random.default_rng(0), OptimizerConfigurator({'name': 'SGD', 'lr': task.lr})
    clients = [
        Client(
            index,
            Drawn(*of_client, task, generator),
            None,
            optimizer,
            torch.nn.CrossEntropyLoss(),
            local_epochs=1,
            persistency=False,
        )
        for index, of_client in enumerate(zip(*torch_parts.data(task), strict=True))
    ]
    server = Drawing(torch_parts.network(task), None, clients, weighted=True)
    server.cohorts = task.cohorts.tolist()
    algorithm = FedAVG(len(clients), None, None, clients=clients, server=server)
    algorithm.set_callbacks(Report())
    algorithm.run(task.rounds, eligible_perc=task.cohorts.shape[1] / len(clients))
    task_lib.save(torch_parts.as_weights(server.model.state_dict(), task), weights)


if __name__ == '__main__':
    main()
