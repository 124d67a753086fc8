"""FedAvg as a loop in PyTorch: one client after another in one process, whose tensors are indexed directly."""

from __future__ import annotations

import copy

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.peers import task as task_lib
from benchmarks.peers import torch_parts


def main() -> None:
    folder, weights = task_lib.arguments()
    task = task_lib.load(folder)
    torch.set_num_threads(task.threads)
    server = torch_parts.network(task)
    images, labels = torch_parts.data(task)
    generator = np.random.default_rng(0)
    for number, cohort in enumerate(task.cohorts, start=1):
        total = [torch.zeros_like(parameter) for parameter in server.parameters()]
        share = 1 / len(cohort)  # by images, of which all clients have as many
        for client in cohort:
            model = copy.deepcopy(server)
            optimizer = torch.optim.SGD(model.parameters(), lr=task.lr)
            for rows in torch.from_numpy(task.batches(generator)):
                optimizer.zero_grad()
                F.cross_entropy(model(images[client, rows]), labels[client, rows]).backward()
                optimizer.step()
            with torch.no_grad():
                torch._foreach_add_(total, list(model.parameters()), alpha=share)
        with torch.no_grad():
            for parameter, mean in zip(server.parameters(), total, strict=True):
                parameter.copy_(mean)
        task_lib.done(number)
    task_lib.save(torch_parts.as_weights(server.state_dict(), task), weights)


if __name__ == '__main__':
    main()
