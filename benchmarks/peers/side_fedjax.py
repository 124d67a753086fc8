"""FedJAX: its federated averaging, with a Haiku model and the jit backend."""

from __future__ import annotations

import fedjax
import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.peers import task as task_lib


def forward(batch, name: str):
    """Logits [B, 10]; layers are named so that sorting keeps their order."""
    x = batch['x']
    if name == 'mcmahan_cnn':
        for number, channels in enumerate((32, 64)):
            x = jax.nn.relu(hk.Conv2D(channels, 5, name=f'layer_{number}')(x))
            x = hk.max_pool(x, 2, 2, 'SAME')
    hidden = 512 if name == 'mcmahan_cnn' else 200
    x = jax.nn.relu(hk.Linear(hidden, name='layer_2')(hk.Flatten()(x)))
    return hk.Linear(10, name='layer_3')(x)


def main() -> None:
    folder, weights = task_lib.arguments()
    task = task_lib.load(folder)
    model = hk.transform(lambda batch: forward(batch, task.model))

    def loss(parameters, batch, key):
        log_p = jax.nn.log_softmax(model.apply(parameters, key, batch))
        return -jnp.mean(jnp.take_along_axis(log_p, batch['y'][:, None], 1))

    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        jax.grad(loss),
        fedjax.optimizers.sgd(task.lr),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(task.batch_size, num_epochs=None, num_steps=task.steps, seed=0),
    )
    names = [f'layer_{number}' for number in range(4 - len(task.weights) // 2, 4)]
    pairs = zip(task.weights[::2], task.weights[1::2], strict=True)
    state = algorithm.init(
        {name: {'w': jnp.asarray(w), 'b': jnp.asarray(b)} for name, (w, b) in zip(names, pairs, strict=True)}
    )
    clients = [
        fedjax.ClientDataset({'x': x, 'y': y.astype(np.int32)}) for x, y in zip(task.images, task.labels, strict=True)
    ]
    key = jax.random.PRNGKey(0)
    for number, cohort in enumerate(task.cohorts, start=1):
        keys = jax.random.split(jax.random.fold_in(key, number), len(cohort))
        sampled = [(client, clients[client], key) for client, key in zip(cohort.tolist(), keys, strict=True)]
        state, _ = algorithm.apply(state, sampled)
        jax.block_until_ready(state.params)
        task_lib.done(number)
    task_lib.save([np.asarray(state.params[name][part]) for name in names for part in ('w', 'b')], weights)


if __name__ == '__main__':
    main()
