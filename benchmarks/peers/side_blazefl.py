"""BlazeFL: its FedAvg with a pool of threads, one for each core."""

from __future__ import annotations

import copy

import numpy as np
import torch
from blazefl.contrib.fedavg import FedAvgBaseServerHandler, FedAvgThreadPoolClientTrainer

from benchmarks.peers import task as task_lib
from benchmarks.peers import torch_parts


class Models:
    """What BlazeFL calls a model selector: new models, whose weights it then replaces."""

    def __init__(self, task: task_lib.Task):
        # contiguous: BlazeFL flattens parameters with `view`
        self.model = torch_parts.network(task, torch.contiguous_format)

    def select_model(self, model_name: str) -> torch.nn.Module:
        return copy.deepcopy(self.model)  # asked for in every round of a client


class Drawn:
    """What BlazeFL calls a partitioned dataset: the steps of a client's next round."""

    def __init__(self, task: task_lib.Task):
        self.task, self.visits = task, np.zeros(len(task.images), int)
        self.images, self.labels = torch_parts.data(task)

    def get_dataloader(self, type_, cid, batch_size, generator):
        self.visits[cid] += 1
        of_round = np.random.default_rng([cid, self.visits[cid]])  # threads run in any order
        for rows in torch.from_numpy(self.task.batches(of_round)):
            yield self.images[cid, rows], self.labels[cid, rows]


def main() -> None:
    folder, weights = task_lib.arguments()
    task = task_lib.load(folder)
    torch.set_num_threads(1)
    models, data = Models(task), Drawn(task)
    clients, active = len(task.images), task.cohorts.shape[1]
    shared = {'model_selector': models, 'model_name': task.model, 'dataset': data, 'device': 'cpu', 'seed': 0}
    shared |= {'num_clients': clients, 'batch_size': task.batch_size}
    server = FedAvgBaseServerHandler(global_round=task.rounds, sample_ratio=active / clients, **shared)
    server.num_clients_per_round = active  # int(clients * ratio) may round down
    trainer = FedAvgThreadPoolClientTrainer(epochs=1, lr=task.lr, num_parallels=task.cores, **shared)
    for number, cohort in enumerate(task.cohorts.tolist(), start=1):
        trainer.local_process(server.downlink_package(), cohort)
        for package in trainer.uplink_package():
            server.load(package)
        task_lib.done(number)
    task_lib.save(torch_parts.as_weights(server.model.state_dict(), task), weights)


if __name__ == '__main__':
    main()
