"""A method from outside of the package whose clients read whole sets."""

import jax.numpy as jnp

from semisfl_jax import algorithms, core, costs
from semisfl_jax.core import losses, rng
from semisfl_jax.core.hparams import learning_rate, optimizer
from semisfl_jax.core.state import with_parameters
from semisfl_jax.core.types import LOCAL_CLIENTS, Algorithm


def one_pass(model, views, hparams, axis=LOCAL_CLIENTS):
    """Each client passes once over all its images in batches of B, however many K_u are, and learns to predict of an
    image what the model that it received predicts; of the images that it has labels for, the label."""

    def client(inputs, client_state, state, federation, lr):
        size, labeled_size = federation.size[inputs.id], federation.labeled_size[inputs.id]
        width = federation.index.shape[1]
        steps = -(-(size + labeled_size) // hparams.batch_size)

        def loss(parameters, student, _, t):
            positions = t * hparams.batch_size + jnp.arange(hparams.batch_size)
            ours = positions < size + labeled_size
            positions = jnp.where(positions < size, positions, width + jnp.clip(positions - size, 0, labeled_size - 1))
            rows = inputs.rows[positions]
            images = views.normalize(federation.client_images[rows])
            guesses = jnp.argmax(core.forward(model, state.student, images, None, False)[0], axis=-1)
            labels = jnp.where(inputs.labeled[positions], federation.client_labels[rows], guesses)
            student = with_parameters(student, parameters)
            logits, student = core.forward(model, student, images, rng.fold(inputs.key, t), True)
            value = losses.cross_entropy(logits, labels, ours.astype(jnp.float32))
            return value, (student, {'loss_local': value}, {})

        ended = core.local_sgd(loss, state.student, client_state, optimizer(hparams, lr), steps)
        return core.ClientOutput(*ended[:2], ended[2] | {'client_steps': jnp.float32(steps)}, ended[3])

    local = core.build_local(client, hparams, axis, reads='sets')

    def init(key):
        return core.init_state(key, model, teacher=False)

    def round_(key, state, federation, cohort, k_s):
        lr = learning_rate(hparams, state.round)
        student, _, metrics = local(key, state, federation, cohort, lr)
        return state.replace(round=state.round + 1, student=student), {'lr': lr, **metrics}

    return Algorithm(init, round_, core.predict_by(model, views, 'student'), headline='student')


METHOD = algorithms.Method(
    'one_pass', one_pass, uses=('local', 'pre-rounds'), server='optional', reads='sets', price=costs.whole_model
)
