"""Algorithm 1 of Fed-SHVR to the letter, and its two ablations, in NumPy in float64 on the model of linear.py.

Clients are objects that store their model theta_k and their correction d_k, and the first round does nothing, as all
models are equal. Gradients are differences.
"""

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import xlogy

from semisfl_jax.core import rng
from semisfl_jax.core.types import Cohort
from tests.helpers import draws, linear, toy
from tests.helpers.linear_local import softmax

WEIGHTS = ('bottom', 'top')


class Client:
    """Client k."""

    def __init__(self, number, federation, h, theta):
        self.number, self.h, self.federation = number, h, federation
        self.unlabeled, self.labeled = int(federation.size[number]), int(federation.labeled_size[number])
        b_u, epochs = h.batch_size - h.labeled_rows, h.local.epochs
        self.steps = max(int(max(self.unlabeled * epochs / b_u, self.labeled * epochs / h.labeled_rows)), 1)
        self.theta, self.d = dict(theta), {name: np.zeros_like(theta[name]) for name in WEIGHTS}

    def train(self, theta, key, round_index, alpha0, lr, pixels):
        """Eq. 16, tau_k times, with labels of theta. `pixels` makes rows of views."""
        h, options = self.h, self.h.options
        cohort = Cohort(jnp.array([self.number]), jnp.ones(1), jnp.array([round_index]))
        rows, known = jax.device_get(draws.client_rows(key, self.federation, cohort, h.batches))
        step_keys = rng.fold(rng.fold(key, 'local', round_index), self.number)
        now = dict(theta)
        for t in range(self.steps):
            step_key = rng.fold(step_keys, t)
            images = self.federation.client_images[rows[0, t]]
            truth, known_rows = self.federation.client_labels[rows[0, t]], known[0, t]
            plain = np.asarray(toy.VIEWS.normalize(images), np.float64).reshape(len(images), -1)
            predicted = softmax((plain @ theta['bottom'] - theta['mean']) @ theta['top'])
            if options.alpha1:
                soft = predicted ** (alpha0 / options.alpha1)
                soft /= soft.sum(axis=1, keepdims=True)
            else:
                soft = np.eye(predicted.shape[1])[predicted.argmax(axis=1)]
            x = pixels('weak', rng.fold(step_key, 'strong'), images)
            head = h.labeled_rows
            own = pixels('supervised', rng.fold(step_key, 'supervised'), images[:head])
            x[:head] = np.where(known_rows[:head, None], own, x[:head])
            factors = [linear.factor(rng.fold(step_key, 'dropout', piece)) for piece in ('bottom', 'top')]

            def objective(y, top, soft=soft, truth=truth, known_rows=known_rows, factors=factors):
                p = softmax((y - y.mean(axis=0)) * factors[0] @ top * factors[1])
                cross = -np.log(p[np.arange(len(truth)), truth])
                uniform = np.full(p.shape[1], 1 / p.shape[1])
                unlabeled = (
                    -alpha0 * np.sum(soft * np.log(p), axis=1)
                    + options.alpha1 * np.sum(xlogy(soft, soft / uniform), axis=1)
                    + options.alpha2 * np.sum(p * np.log(p / uniform), axis=1)
                )
                labeled = cross[known_rows].mean() if known_rows.any() else 0.0
                return labeled + unlabeled[h.labeled_rows :].mean()  # B_u rows, labels or not

            y = x @ now['bottom']
            of_y, of_top = linear.gradients_of(objective, [y, now['top']])
            gradient = {'bottom': x.T @ of_y, 'top': of_top}
            now = {name: now[name] - lr * (gradient[name] + self.d[name]) for name in WEIGHTS} | {
                'mean': 0.9 * now['mean'] + 0.1 * y.mean(axis=0)
            }
        self.theta = now


class Server:
    """The server, with all clients in every round. `name`: 'fed_shvr', or 'fed_svr' or 'fed_sh'."""

    def __init__(self, name, key, h, student, federation):
        self.name, self.key, self.h, self.number = name, key, h, 0
        self.theta, federation = linear.numbers(student), jax.device_get(federation)
        self.clients = [Client(number, federation, h, self.theta) for number in range(h.num_clients)]
        images = np.array([client.unlabeled + client.labeled for client in self.clients])
        self.shares = images / images.sum()
        self.pixels = linear.Server(key, h, student).pixels

    def run_round(self):
        """Eq. 14 at the server, Eq. 8, 15 and 16 at the clients."""
        lr, old, tau = self.h.lr, self.theta, [client.steps for client in self.clients]
        mean_tau = float(self.shares @ tau)

        def weighted(of_client):
            return sum(share * of_client(client) for share, client in zip(self.shares, self.clients, strict=True))

        new = {'mean': weighted(lambda client: client.theta['mean'])}
        for name in WEIGHTS:
            if self.name == 'fed_svr':
                new[name] = weighted(lambda client, name=name: client.theta[name])
            else:
                step = weighted(lambda client, name=name: (old[name] - client.theta[name]) / (lr * client.steps))
                new[name] = old[name] - lr * mean_tau * step
        self.theta = new
        for client in self.clients:
            for name in WEIGHTS:
                if self.name != 'fed_sh':
                    far = client.steps if self.name == 'fed_svr' else mean_tau
                    common = (old[name] - new[name]) / (lr * far)
                    client.d[name] += common - (old[name] - client.theta[name]) / (lr * client.steps)
            options = self.h.options
            alpha0 = options.alpha0
            alpha0 *= min(self.number / options.ramp_rounds, 1.0) if options.ramp_rounds else 1.0
            client.train(new, self.key, self.number, alpha0, lr, self.pixels)
        self.number += 1
