"""FedAvg as a loop in PyTorch: one client after another in one process, whose tensors are indexed directly."""

from __future__ import annotations

import copy

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.peers import task as task_lib
from benchmarks.peers import torch_parts


def floats(model: torch.nn.Module) -> list[torch.Tensor]:
    """What the server averages: parameters and statistics of BatchNorm, without gradients."""
    return [tensor for tensor in model.state_dict().values() if tensor.is_floating_point()]


def main() -> None:
    folder, weights = task_lib.arguments()
    task = task_lib.load(folder)
    torch.set_num_threads(task.threads)
    server = torch_parts.network(task)
    images, labels = torch_parts.data(task)
    test_images, test_labels = (part.split(500) for part in torch_parts.test_data(task))  # as this project does
    generator = np.random.default_rng(0)
    for number, cohort in enumerate(task.cohorts, start=1):
        total = [torch.zeros_like(weight) for weight in floats(server)]
        share = 1 / len(cohort)  # by images, of which all clients have as many
        for client in cohort:
            model = copy.deepcopy(server).train()
            optimizer = torch.optim.SGD(model.parameters(), lr=task.lr)
            for rows in torch.from_numpy(task.batches(generator)):
                optimizer.zero_grad()
                F.cross_entropy(model(images[client, rows]), labels[client, rows]).backward()
                optimizer.step()
            torch._foreach_add_(total, floats(model), alpha=share)
        for weight, mean in zip(floats(server), total, strict=True):
            weight.copy_(mean)
        if task.evaluate and number % task.evaluate == 0:
            server.eval()
            with torch.no_grad():
                hits = sum(int((server(x).argmax(1) == y).sum()) for x, y in zip(test_images, test_labels, strict=True))
            print(f'accuracy {hits / len(task.test_labels)}')
        task_lib.done(number)
    task_lib.save(torch_parts.as_weights(dict(server.named_parameters()), task), weights)


if __name__ == '__main__':
    main()
