"""pfl: its federated averaging on simulated users in one process."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch
import torch.nn.functional as F
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel

from benchmarks.peers import task as task_lib
from benchmarks.peers import torch_parts


class Network(torch.nn.Module):
    """The model with the two methods that pfl asks for."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def loss(self, images, labels):
        return F.cross_entropy(self.train().model(images), labels)

    @torch.no_grad()
    def metrics(self, images, labels):
        logits = self.eval().model(images)
        sums = F.cross_entropy(logits, labels, reduction='sum'), (logits.argmax(1) == labels).sum()
        return {name: Weighted(sum_.item(), len(labels)) for name, sum_ in zip(('loss', 'accuracy'), sums, strict=True)}


class WithoutEvaluation(FederatedAveraging):
    """pfl would evaluate clients on their own images, before and after training, in round 0 at least."""

    def get_next_central_contexts(self, *arguments, **named):
        contexts, model, metrics = super().get_next_central_contexts(*arguments, **named)
        if contexts is not None:
            contexts = tuple(dataclasses.replace(context, do_evaluation=False) for context in contexts)
        return contexts, model, metrics


class Report(TrainingProcessCallback):
    """Reports every round."""

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        task_lib.done(central_iteration + 1)
        return False, Metrics()


def main() -> None:
    folder, weights = task_lib.arguments()
    task = task_lib.load(folder)
    torch.set_num_threads(task.threads)
    images, labels = torch_parts.data(task)
    generator, upcoming = np.random.default_rng(0), iter(task.cohorts.ravel().tolist())

    def user(client: int) -> Dataset:
        rows = torch.from_numpy(task.batches(generator).ravel())
        return Dataset([images[client, rows], labels[client, rows]], user_id=client)

    callbacks = [Report()]
    if task.evaluate:  # first of all, and then at once on the test images, as in its benchmark
        at_once = NNEvalHyperParams(local_batch_size=10_000)
        test = Dataset([*torch_parts.test_data(task)])
        callbacks.insert(0, CentralEvaluationCallback(test, at_once, frequency=task.evaluate))
    network = Network(torch_parts.network(task))
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    backend = SimulatedBackend(
        training_data=FederatedDataset(user, lambda: next(upcoming)),
        val_data=None,
        postprocessors=[WeightByDatapoints()],
    )
    WithoutEvaluation().run(
        NNAlgorithmParams(
            central_num_iterations=task.rounds,
            evaluation_frequency=task.rounds,
            train_cohort_size=task.cohorts.shape[1],
            val_cohort_size=0,
        ),
        backend,
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=task.lr, local_batch_size=task.batch_size),
        callbacks=callbacks,
        send_metrics_to_platform=False,
    )
    task_lib.save(torch_parts.as_weights(network.state_dict(), task), weights)


if __name__ == '__main__':
    main()
