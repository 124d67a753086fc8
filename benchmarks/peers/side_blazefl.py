"""BlazeFL: its FedAvg with a pool of threads or, with the mode 'processes', of processes, one for each core."""

from __future__ import annotations

import copy
import functools
import sys
from pathlib import Path

import numpy as np
import torch
from blazefl.contrib import fedavg
from blazefl.core import IPCMode

from benchmarks.peers import task as task_lib
from benchmarks.peers import torch_parts


class Batches:
    """What BlazeFL calls a data loader."""

    dataset = None  # handed back by processes

    def __init__(self, images, labels, rows):
        self.images, self.labels, self.rows = images, labels, rows

    def __iter__(self):
        return ((self.images[rows], self.labels[rows]) for rows in self.rows)


class Given:
    """What BlazeFL calls a model selector, and a partitioned dataset: new models and the steps of a client's round."""

    def __init__(self, folder: str):
        self.folder, self.task = folder, task_lib.load(folder)
        # contiguous: BlazeFL flattens parameters with `view`
        self.model = torch_parts.network(self.task, torch.contiguous_format)
        self.images, self.labels = torch_parts.data(self.task)
        self.test = torch_parts.test_data(self.task)

    def __reduce__(self):
        return given, (self.folder,)  # sent to a process for every client, which has it from its parent

    def select_model(self, model_name: str) -> torch.nn.Module:
        return copy.deepcopy(self.model)  # asked for in every round of a client, which then replaces the weights

    def get_dataloader(self, type_, cid, batch_size, generator):
        if type_ == 'test':
            return Batches(*self.test, torch.arange(len(self.test[1])).split(batch_size))
        of_round = torch.randint(2**31, (1,), generator=generator).item()  # the generator is the client's own
        rows = torch.from_numpy(self.task.batches(np.random.default_rng([cid, of_round])))
        return Batches(self.images[cid], self.labels[cid], rows)

    def set_dataset(self, type_, cid, dataset):
        """Does nothing: processes would save the client's data, which no round changes."""


@functools.cache
def given(folder: str) -> Given:
    """Reads a task once."""
    return Given(folder)


def trainer(task: task_lib.Task, **shared):
    """BlazeFL's part that trains the clients of a round."""
    shared |= {'epochs': 1, 'lr': task.lr, 'num_parallels': task.cores}
    if sys.argv[3:] != ['processes']:
        return fedavg.FedAvgThreadPoolClientTrainer(**shared)
    torch.optim.SGD([torch.zeros(1, requires_grad=True)])  # its first one imports for seconds: not in every process
    shared |= {'share_dir': Path('share'), 'state_dir': Path('state'), 'ipc_mode': IPCMode.SHARED_MEMORY}
    return fedavg.FedAvgProcessPoolClientTrainer(**shared)


def main() -> None:
    folder, weights = task_lib.arguments()
    torch.set_num_threads(1)
    source = given(folder)
    task = source.task
    clients, active = len(task.images), task.cohorts.shape[1]
    shared = {'model_selector': source, 'model_name': task.model, 'dataset': source, 'device': 'cpu', 'seed': 0}
    shared |= {'num_clients': clients, 'batch_size': task.batch_size}
    server = fedavg.FedAvgBaseServerHandler(global_round=task.rounds, sample_ratio=active / clients, **shared)
    server.num_clients_per_round = active  # int(clients * ratio) may round down
    pool = trainer(task, **shared)
    for number, cohort in enumerate(task.cohorts.tolist(), start=1):
        pool.local_process(server.downlink_package(), cohort)
        for package in pool.uplink_package():
            server.load(package)
        if task.evaluate and number % task.evaluate == 0:
            print(server.get_summary())
        task_lib.done(number)
    task_lib.save(torch_parts.as_weights(dict(server.model.named_parameters()), task), weights)


if __name__ == '__main__':
    main()
