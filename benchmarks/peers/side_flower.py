"""Flower: its FedAvg in the simulation engine, every client an actor of Ray with one core."""

from __future__ import annotations

import functools
import os

os.environ.update(FLWR_TELEMETRY_ENABLED='0', RAY_USAGE_STATS_ENABLED='0', RAY_DEDUP_LOGS='0')

import numpy as np
import ray
import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from benchmarks.peers import task as task_lib
from benchmarks.peers import torch_parts


@functools.cache
def loaded(folder: str):
    """Task, data and a model, read once by every actor."""
    torch.set_num_threads(1)
    task = task_lib.load(folder)
    return task, *torch_parts.data(task), torch_parts.network(task)


def train(message: Message, _) -> Message:
    """A client's round; which client it is, the server says."""
    config = message.content['config']
    task, images, labels, model = loaded(config['folder'])
    client = config['client']
    model.load_state_dict(message.content['arrays'].to_torch_state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=task.lr)
    for rows in torch.from_numpy(task.batches(np.random.default_rng([client, config['server-round']]))):
        optimizer.zero_grad()
        F.cross_entropy(model(images[client, rows]), labels[client, rows]).backward()
        optimizer.step()
    metrics = MetricRecord({'num-examples': images.shape[1]})
    content = RecordDict({'arrays': ArrayRecord(model.state_dict()), 'metrics': metrics})
    return Message(content=content, reply_to=message)


class Drawing(FedAvg):
    """FedAvg with the cohorts of the task: a node that takes part trains the client of its place."""

    def __init__(self, folder: str, cohorts: np.ndarray, clients: int):
        active = cohorts.shape[1]
        super().__init__(fraction_train=active / clients, fraction_evaluate=0.0, min_train_nodes=active)
        self.min_available_nodes = clients
        self.folder, self.cohorts = folder, cohorts.tolist()

    def configure_train(self, server_round, arrays, config, grid):
        messages = list(super().configure_train(server_round, arrays, config, grid))
        for message, client in zip(messages, self.cohorts[server_round - 1], strict=True):
            own = ConfigRecord({**config, 'folder': self.folder, 'client': client})
            message.content = RecordDict({'arrays': arrays, 'config': own})
        return messages

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        if failed := [reply.error.reason for reply in replies if reply.has_error()]:
            raise RuntimeError(f'{len(failed)} clients failed: {failed[0]}')
        result = super().aggregate_train(server_round, replies)
        task_lib.done(server_round)
        return result


def main() -> None:
    folder, weights = task_lib.arguments()
    task = task_lib.load(folder)
    server, client = ServerApp(), ClientApp()
    client.train()(train)

    @server.main()
    def serve(grid, _):
        start = torch_parts.network(task).state_dict()
        strategy = Drawing(folder, task.cohorts, len(task.images))
        result = strategy.start(grid, ArrayRecord(start), task.rounds)
        task_lib.save(torch_parts.as_weights(result.arrays.to_torch_state_dict(), task), weights)

    try:
        run_simulation(
            server,
            client,
            len(task.images),
            backend_config={
                'client_resources': {'num_cpus': 1, 'num_gpus': 0.0},
                'init_args': {'num_cpus': task.cores, 'include_dashboard': False},
            },
        )
    finally:
        ray.shutdown()


if __name__ == '__main__':
    from benchmarks.peers import side_flower  # by its name, under which actors can import what they run

    side_flower.main()
