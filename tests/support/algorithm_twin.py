"""A slow, independent twin of Algorithm 1, to compare the simulator with. Pure numpy, one process.

It reads like the paper's pseudocode: every client of every round computes, a dense matrix Q gives the
weights, and nothing is shared with the fast path but the addresses of random numbers.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedmpi.data import rng

Gradient = Callable[[int, int, np.ndarray], np.ndarray]  # (client, minibatch number, y) -> g_n(y)


def algorithm_1(
    gradient: Gradient,
    q: np.ndarray,  # (T, N)
    x_0: np.ndarray,
    gamma: float,
    eta: float,
    period: int,
    local_steps: int,
    warmup: tuple[int, float] = (0, 0.0),  # rounds, gamma
) -> list[np.ndarray]:
    """x_0, x_1, ..., x_T."""
    num_rounds, num_clients = q.shape
    x, u, t_0 = np.array(x_0, dtype=np.float64), np.zeros(len(x_0)), 0
    drawn = np.zeros(num_clients, dtype=int)
    trajectory = [x]
    for t in range(num_rounds):
        in_warmup = t < warmup[0]
        step = warmup[1] if in_warmup else gamma
        delta = np.zeros((num_clients, len(x)))
        for n in range(num_clients):
            if q[t, n] == 0:
                continue  # logically equivalent, says the paper
            y = x.copy()
            for i in range(local_steps):
                y = y - step * gradient(n, drawn[n] + i, y)
            delta[n] = y - x
            drawn[n] += local_steps
        x = x + q[t] @ delta
        u = u + q[t] @ delta
        if in_warmup:
            if t + 1 == warmup[0]:
                t_0, u = t + 1, np.zeros(len(x))
        elif t + 1 - t_0 == period:
            x = x + (eta - 1) * u
            t_0, u = t + 1, np.zeros(len(x))
        trajectory.append(x)
    return trajectory


def quadratic_gradient(centers: np.ndarray, noise_std: float = 0.0, seed: int = 1) -> Gradient:
    """g_n(y) = y - z_n - noise."""

    def gradient(client: int, number: int, y: np.ndarray) -> np.ndarray:
        noise = noise_std * rng.stream(seed, "noise", client, number).standard_normal(len(y))
        return y - (centers[client] + noise)

    return gradient


def minibatch(size: int, batch: int, seed: int, client: int, number: int) -> np.ndarray:
    """The paper's walk: shuffle, take batch after batch, drop the short rest, shuffle again."""
    if batch == 0 or batch >= size:
        return np.arange(size)
    per_epoch = size // batch
    order = rng.stream(seed, "minibatch", client, number // per_epoch).permutation(size)
    first = (number % per_epoch) * batch
    return order[first : first + batch]


def logistic_gradient(
    inputs: list[np.ndarray], labels: list[np.ndarray], num_classes: int, batch: int, seed: int
) -> Gradient:
    """Multinomial logistic regression, parameters (weight (C, D), bias (C,)) flattened in that order."""

    def gradient(client: int, number: int, y: np.ndarray) -> np.ndarray:
        rows = minibatch(len(labels[client]), batch, seed, client, number)
        a, b = inputs[client][rows], labels[client][rows]
        weight = y[:-num_classes].reshape(num_classes, -1)
        logits = a @ weight.T + y[-num_classes:]
        p = np.exp(logits - logits.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p[np.arange(len(b)), b] -= 1
        p /= len(b)
        return np.concatenate([(p.T @ a).ravel(), p.sum(axis=0)])

    return gradient


def logistic_loss(inputs: np.ndarray, labels: np.ndarray, y: np.ndarray) -> float:
    """The mean cross-entropy of the same model on these samples."""
    num_classes = len(y) // (inputs.shape[1] + 1)
    logits = inputs @ y[:-num_classes].reshape(num_classes, -1).T + y[-num_classes:]
    highest = logits.max(axis=1, keepdims=True)
    whole = highest[:, 0] + np.log(np.exp(logits - highest).sum(axis=1))
    return float((whole - logits[np.arange(len(labels)), labels]).mean())
