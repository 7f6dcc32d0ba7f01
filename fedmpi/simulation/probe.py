"""The paper's constants at a point, from the data: gradients, noise and curvature over all ranks.

Each rank works on the clients it owns. These are estimates at one point, not bounds for all x, which no
measurement can give. Invariant: the run itself does not change; sums over ranks are exact, so the results
of `client_gradients` and `observe` do not depend on the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedmpi.data import rng
from fedmpi.data.ownership import owned_by, owner_of, place_of
from fedmpi.data.shard import ClientData, Work
from fedmpi.errors import UserError
from fedmpi.models.flat import FlatModel
from fedmpi.mpi import Comm
from fedmpi.mpi.device import ranks_sharing
from fedmpi.mpi.node_memory import room_for_rank
from fedmpi.simulation.aggregate import WeightedSum
from fedmpi.simulation.at_x import add_client_gradient, client_loss
from fedmpi.simulation.gpu_aggregate import make_sum
from fedmpi.simulation.shares import Vector
from fedmpi.theory import deviations_of_gram

_MINIBATCHES = 8  # of each client, for sigma^2
_CURVATURE_CLIENTS = 32  # for L, evenly spaced
_MOST_ITERATIONS = 30
_BYTES = 16  # a value: all gradients in float64, and once more those of the participants with their weights
_MOST_CLIENTS = 2000  # for the matrix of inner products
_COLUMNS = 1 << 14


@dataclass(frozen=True, kw_only=True)
class Measured:
    """The constants measured at one point."""

    smoothness: float  # largest |eigenvalue| of the Hessians of the clients examined
    sigma2: float  # largest over clients of the minibatch gradients' variance
    gap: float  # f(x), an upper bound of f(x) - f* as losses are never below 0
    grad_norm2: float
    d2: float
    # Rows with the inner products of grad F_n - grad f; None for too many clients.
    deviations: np.ndarray | None


class Probe:
    """Gradients of whole clients at any x, on all ranks."""

    def __init__(self, comm: Comm, model: FlatModel, clients: ClientData, num_clients: int) -> None:
        self._comm, self._model, self._data = comm, model, clients
        self.num_clients = num_clients
        self.owned = owned_by(comm.rank, comm.size, num_clients)
        self._everybody = np.arange(num_clients)
        self._has_room = False  # not known yet

    @cached_property
    def _sum(self) -> WeightedSum:
        """Created on first use, since it holds a vector."""
        model = self._model
        return make_sum(self._comm, model.num_params, torch.float64, model.values.device)

    def client_gradients(
        self, x: np.ndarray, tick: Callable[[int], None] = lambda done: None
    ) -> tuple[Tensor, np.ndarray]:
        """Collective. (own clients, num_params) gradients of F_n at x, and the losses of all N clients."""
        self._require_room()

        # Own clients one by one.
        rows = self._model.values.new_zeros((len(self.owned), self._model.num_params))
        losses = np.zeros(self.num_clients)
        self._model.load(x)
        for place, client in enumerate(self.owned.tolist()):
            losses[client] = add_client_gradient(self._model, self._data, client, rows[place]).item()
            tick(place + 1)

        # Exact: each client's loss has one owner.
        self._comm.sum_in_place(losses)
        return rows, losses

    def losses(self, x: Vector, clients: np.ndarray) -> np.ndarray:
        """Collective. F_n(x) of some clients; their owners compute them, one client after another."""
        losses, mine = np.zeros(len(clients)), owner_of(clients, self._comm.size) == self._comm.rank
        self._model.load(x)
        with torch.inference_mode():
            own = [client_loss(self._model, self._data, n) for n in clients[mine].tolist()]
        if own:
            losses[mine] = torch.stack(own).cpu().numpy()
        self._comm.sum_in_place(losses)
        return losses

    def _require_room(self) -> None:
        """Collective. Refuse, with the arithmetic, what would not fit; asked before the first time only.

        Later there is less room, since torch and the system keep what the first time took.
        """
        if self._has_room:
            return
        device = self._model.values.device
        sharing = ranks_sharing(self._comm, device)
        count, num_params = len(self.owned), self._model.num_params
        self._comm.try_on_all(lambda: _check_room(count, num_params, room_for_rank(device, sharing)))
        self._has_room = True

    def mean(self, rows: Tensor) -> np.ndarray | None:
        """Collective. grad f, the mean over all clients; None if some gradient is not finite."""
        # Row by row, here and below: a temporary array of all rows would be as large as they are.
        is_bad = float(not all(bool(torch.isfinite(row).all()) for row in rows))
        if self._comm.maximum(np.array([is_bad]))[0]:
            return None
        total = self._sum.total(rows, self._everybody, self.owned)
        return total / self.num_clients

    def of_all(self, own: np.ndarray) -> np.ndarray:
        """Collective. One number for each of all N clients, from those of this rank's clients."""
        values = np.zeros(self.num_clients)
        values[self.owned] = own
        self._comm.sum_in_place(values)
        return values

    def weighted(self, rows: Tensor, clients: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Collective. sum_n q^n row_n over some clients; the rows are in float64."""
        mine = np.flatnonzero(owner_of(clients, self._comm.size) == self._comm.rank)
        places = torch.from_numpy(place_of(clients[mine], self._comm.size))
        factors = torch.from_numpy(weights[mine])[:, None].to(rows.device)
        return self._sum.total(rows[places].mul_(factors), clients, mine)

    def observe(self, x: np.ndarray, clients: np.ndarray, weights: np.ndarray) -> dict[str, float]:
        """Collective. |grad f|^2, d^2, its mean, and beta_t^2 and nu_t^2 of the participants: /theory."""
        # grad f; without it nothing can be said.
        rows, _ = self.client_gradients(x)
        mean = self.mean(rows)
        if mean is None:
            return dict.fromkeys(("grad_norm2", "d2", "mean_d2", "beta2", "nu2"), math.nan)

        # Deviations of the clients from grad f.
        rows = rows.double().sub_(torch.from_numpy(mean).to(rows.device))
        distances = self.of_all(_square_norms(rows))

        # How far the participants are from grad f, and from each other.
        beta2 = nu2 = 0.0
        if len(clients):
            away = self.weighted(rows, clients, weights)
            beta2 = math.fsum(np.square(away))
            spread = _square_norms(rows, torch.from_numpy(away).to(rows.device))
            nu2 = math.fsum(weights * self.of_all(spread)[clients])
        return {
            "grad_norm2": math.fsum(np.square(mean)),
            "d2": float(distances.max()),
            "mean_d2": math.fsum(distances) / len(distances),
            "beta2": beta2,
            "nu2": nu2,
        }

    # --- Only for `advise` ----------------------------------------------------------------------------

    def measure(self, x: np.ndarray, tick: Callable[[int], None]) -> Measured:
        """Collective. Every constant at x; `tick(done)` reports this rank's progress out of `steps`."""
        # Gradients, then the noise of minibatches and the curvature at x.
        rows, losses = self.client_gradients(x, tick)
        mean = self.mean(rows)
        if mean is None:
            raise UserError.on_all_ranks("gradients are not finite at this point: cannot measure constants")
        noise = self._noise(rows, lambda done: tick(len(self.owned) + done))
        curvature = self._curvature(lambda done: tick(2 * len(self.owned) + done))

        # Deviations from grad f; their inner products if there are few clients.
        rows = rows.double().sub_(torch.from_numpy(mean).to(rows.device))
        d2 = self.of_all(_square_norms(rows)).max()
        is_small = self.num_clients <= _MOST_CLIENTS
        return Measured(
            smoothness=curvature,
            sigma2=noise,
            gap=losses.mean(),
            grad_norm2=math.fsum(np.square(mean)),
            d2=float(d2),
            deviations=deviations_of_gram(self._gram(rows)) if is_small else None,
        )

    @property
    def steps(self) -> int:
        """What `tick` counts up to."""
        return 2 * len(self.owned) + len(self._curvature_clients())

    def _noise(self, rows: Tensor, tick: Callable[[int], None]) -> float:
        """Collective. sigma^2: the largest over clients of mean |g_n - grad F_n|^2 over minibatches."""
        variances = np.zeros(len(self.owned))
        for place, client in enumerate(self.owned.tolist()):
            tick(place + 1)
            if self._data.size(client) == 0:
                continue

            # |g_n - grad F_n|^2 of a few minibatches.
            squares = []
            for inputs, labels in self._data.minibatches([Work(self._data, client, 0)], _MINIBATCHES):
                loss = self._model.task.losses(self._model.module(inputs[0]), labels[0]).mean()
                away = -rows[place].double()
                views = self._model.trainable_views(away)
                for view, part in zip(views, self._model.gradient(loss), strict=True):
                    view += part
                squares.append(away.square().sum().item())
            variances[place] = np.mean(squares)
        return float(self.of_all(variances).max())

    def _curvature_clients(self) -> list[int]:
        chosen = np.linspace(0, self.num_clients - 1, min(self.num_clients, _CURVATURE_CLIENTS)).astype(int)
        mine = chosen[owner_of(chosen, self._comm.size) == self._comm.rank].tolist()
        return [client for client in mine if self._data.size(client)]

    def _curvature(self, tick: Callable[[int], None]) -> float:
        """Collective. L: the largest |eigenvalue| of Hessians of F_n, by power iterations."""
        self._model.module.eval()
        largest = 0.0
        for done, client in enumerate(self._curvature_clients(), 1):
            largest = max(largest, self._power_iteration(client))
            tick(done)
        self._model.module.train()
        return float(self._comm.maximum(np.array([largest]))[0])

    def _power_iteration(self, client: int) -> float:
        # From a random unit vector until the norm grows by less than 1 %.
        draws = rng.stream(self._data.seed, "curvature", client).standard_normal(self._model.num_params)
        vector = torch.from_numpy(draws / np.linalg.norm(draws)).to(self._model.values)
        before = 0.0
        for _ in range(_MOST_ITERATIONS):
            product = self._hessian_times(client, vector)
            size = product.norm().item()
            if size <= 1.01 * before or size == 0:  # never decreases, except by rounding
                return size
            before, vector = size, product / size
        return before

    def _hessian_times(self, client: int, vector: Tensor) -> Tensor:
        """The Hessian of F_n times a vector, by differentiating the gradient's product with it."""
        result = torch.zeros_like(vector)
        parts, along = self._model.trainable_views(result), self._model.trainable_views(vector)
        for inputs, labels in self._data.all_samples(client):
            loss = self._model.task.losses(self._model.module(inputs), labels).sum() / self._data.size(
                client
            )
            gradient = self._model.gradient(loss, create_graph=True)
            product = sum((g * v).sum() for g, v in zip(gradient, along, strict=True))
            if product.requires_grad:
                torch._foreach_add_(parts, self._model.gradient(product))
        return result

    def _gram(self, rows: Tensor) -> np.ndarray:
        """Collective. All inner products of clients' rows, a block of columns at a time."""
        gram = np.zeros((self.num_clients, self.num_clients))
        for start in range(0, rows.shape[1], _COLUMNS):
            mine = rows[:, start : start + _COLUMNS].cpu().numpy()
            everybody = np.zeros((self.num_clients, mine.shape[1]))
            everybody[self.owned] = mine
            self._comm.sum_in_place(everybody.reshape(-1))
            gram += everybody @ everybody.T
        return gram


def _square_norms(rows: Tensor, centre: Tensor | None = None) -> np.ndarray:
    """|row - centre|^2 of each row, centre 0 by default."""
    squares = [(row if centre is None else row - centre).square().sum() for row in rows]
    return torch.stack(squares).cpu().numpy() if squares else np.zeros(0)


def _check_room(num_owned: int, num_params: int, room: int | None) -> None:
    needed = num_owned * num_params * _BYTES
    if room is not None and needed > room:
        raise UserError(
            f"the gradients of a rank's clients take {num_owned:,} clients x {num_params:,} parameters x "
            f"{_BYTES} bytes = {needed / 1e9:.1f} GB, {room / 1e9:.1f} GB are available to it; use more "
            "nodes, or do without run.record_theory_every and measured constants"
        )
