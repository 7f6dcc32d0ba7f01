"""The server's part of Algorithm 1 (Wang & Ji, 2022), and the places where other methods differ from it.

A method is a class that overrides a few of the functions below; each is in its own file, small enough to
read beside its paper. State is a frozen record that is passed along, the same on all ranks; x, u and a
method's own vectors are float64. On a CPU they are numpy arrays; the methods of this package also take
tensors, since on a GPU these vectors stay on the device (use +, * and the functions below). What a client
remembers between rounds is kept by the rank that owns it (`tables`). Nothing here imports torch or MPI:
`local` holds arrays that support +, * and in-place changes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedmpi.config.keys import Config
from fedmpi.config.records import replace
from fedmpi.config.registry import METHODS
from fedmpi.data.local_steps import LocalSteps
from fedmpi.methods import returns

method = METHODS  # `method(name, keys...)` registers a class

Vectors = dict[str, np.ndarray]
Rate = Any  # a float; while a GPU records a step, float64 numbers on the device: (clients, 1)
Local = dict[str, Any]  # name -> (clients, num_params): "update", and the method's tables and scratch


@dataclass(frozen=True)
class ServerState:
    """x_t, u and t_0 of Algorithm 1, and what a method adds to them."""

    global_params: np.ndarray
    accumulated: np.ndarray
    anchor_round: int
    extras: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class Round:
    """What all ranks know about a round once its clients have trained."""

    t: int
    clients: np.ndarray
    weights: np.ndarray
    local_lr: float
    # "weighted_sum" = sum_n q_n Delta_n, and the method's own `client_sums`; known after training.
    sums: Vectors = field(default_factory=dict)
    # In `finish_clients`: the places among them of the clients that the rows belong to.
    mine: np.ndarray | slice = field(default_factory=lambda: slice(None))
    # The method's `client_numbers`, one for each client in the order of `clients`; known after training.
    numbers: Vectors = field(default_factory=dict)

    @property
    def takes_part(self) -> np.ndarray:
        """Whether each client's update counts; one with weight 0 trains, and nobody hears of it."""
        return self.weights > 0


def zeros_like(vector: Any) -> Any:
    """Zeros beside a vector, wherever it lies."""
    return np.zeros_like(vector) if isinstance(vector, np.ndarray) else vector.new_zeros(len(vector))


def sqrt(vector: Any) -> Any:
    """The square root of each entry, wherever they lie."""
    return np.sqrt(vector) if isinstance(vector, np.ndarray) else vector.sqrt()


def sign(vector: Any) -> Any:
    """-1, 0 or 1 for each entry, wherever they lie."""
    return np.sign(vector) if isinstance(vector, np.ndarray) else vector.sign()


def total(vector: Any) -> Any:
    """The sum of all entries, as a vector of one: folded in halves, so the same bits wherever they lie.

    Of rows (clients, num_params) that of each row, as a column: the same bits beside any other rows.

    >>> total(np.array([1.0, 2.0, 4.0]))
    array([7.])
    """
    while vector.shape[-1] > 1:
        half = vector.shape[-1] // 2
        folded = vector[..., :half] + vector[..., half : 2 * half]
        if vector.shape[-1] % 2:
            folded[..., :1] += vector[..., -1:]
        vector = folded
    return vector


def add_scaled(target: Any, values: Any, factor: Rate) -> None:
    """target += factor * values, rounded once, wherever the factor lies."""
    if isinstance(factor, float):
        target.add_(values, alpha=factor)
    else:
        target.addcmul_(values, factor.to(target.dtype))


def multiply(target: Any, factor: Rate) -> None:
    """target *= factor, wherever the factor lies."""
    target.mul_(factor if isinstance(factor, float) else factor.to(target.dtype))


class Method:
    """Generalized FedAvg: eta = 1 is FedAvg, P = 1 is FedAvg with two-sided learning rates.

    Options of all methods: `server_lr` scales what a round adds to x, `server_momentum` averages it.
    """

    tables: tuple[str, ...] = ()  # a vector each for every client, kept by its owner, zero at first
    scratch: tuple[str, ...] = ()  # a vector each for every participant of a round, zero at its start
    broadcasts: tuple[str, ...] = ()  # `extras` that clients need; "server_<name>" in `local`
    client_sums: tuple[str, ...] = ()  # entries of `local` summed over participants, without weights
    client_numbers: tuple[str, ...] = ()  # entries of `local`, a number for each, that the server reads
    has_own_starts = False  # whether `start` says where each client starts, instead of x_t
    takes_back = False  # whether `take_back` is called for participants after the server's step
    asks_losses = False  # whether the server hears the losses F_n(x_t) before it chooses
    asks_gradients = False  # whether participants compute grad F_n(x_t) first: "gradient_at_x" in `local`
    sends = 1  # vectors of the model's size that a participant sends in a round, as the paper counts
    receives = 1  # and gets
    absent_train = False  # whether everybody trains in each round, whoever takes part
    moves_without_participants = False  # whether x moves in a round in which nobody takes part
    steps_by_itself = False  # whether `step` replaces update -= gamma * gradient
    rate_on_device = False  # whether `step` takes any `Rate`; otherwise a GPU records it for each new gamma
    in_packs = True  # whether runs with this method may go on in lockstep with others of a sweep
    step_options: tuple[str, ...] = ()  # keys of [algorithm] that `step` reads, besides local_lr
    default_server_lr = 1.0
    default_momentum = 0.0

    def __init__(self, config: Config, num_clients: int) -> None:
        options = config.algorithm
        self.config = config
        self.num_clients = num_clients
        self.local_steps = LocalSteps(config, num_clients)
        self.observes_interval = config.algorithm.amplify_law == "observed"  # P from who comes back when
        self.server_lr = options.server_lr if options.server_lr is not None else self.default_server_lr
        self.momentum = (
            options.server_momentum if options.server_momentum is not None else self.default_momentum
        )

    # --- Clients --------------------------------------------------------------------------------------

    def with_extras(self, state: ServerState, **changed: np.ndarray) -> ServerState:
        """The state with some of its `extras` changed."""
        return replace(state, extras={**state.extras, **changed})

    def notice(
        self, state: ServerState, t: int, clients: np.ndarray, losses: np.ndarray | None
    ) -> ServerState:
        """The state once the server has seen who could take part in round t, and where `asks_losses` their
        losses at x_t. Also in rounds without anybody.
        """
        return state

    def participants(
        self, state: ServerState, t: int, clients: np.ndarray, weights: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Who trains in round t and with what weight, given what participation says.

        With weight 0 a client trains without taking part: its tables change, and that is all.
        """
        return clients, weights

    def uses_full_data(self, t: int) -> bool:
        """Whether clients use all their data for each step of round t, instead of minibatches."""
        return False

    def start(self, local: Local) -> Any:
        """Where each client starts, where `has_own_starts`: (clients, num_params), a new array."""
        raise NotImplementedError

    def step(self, local: Local, gradient: Any, local_lr: Rate) -> None:
        """A local step, where `steps_by_itself`; y = start + local["update"]."""
        raise NotImplementedError

    @property
    def step_key(self) -> Hashable:
        """Equal for runs of a pack whose clients may share a recorded step."""
        if not type(self).step.__module__.startswith("fedmpi."):
            return id(self)
        return type(self), *(getattr(self.config.algorithm, name) for name in self.step_options)

    def steps_taken(self, current: Round, like: Any) -> Any:
        """I in `finish_clients`: a number for all, or a column with one for each row, beside `like`."""
        if self.local_steps.the_same is not None:
            return self.local_steps.the_same
        steps = self.local_steps.of(current.t, current.clients[current.mine])
        return like.new_tensor(steps.astype(float))[:, None]

    def finish_clients(self, local: Local, current: Round) -> None:
        """After the last local step: fill `client_sums` and `client_numbers` and update `tables`, for some
        of the clients: `current.clients[current.mine]`, in the order of the rows.
        """

    def take_back(self, local: Local, current: Round) -> None:
        """After the server's step, where `takes_back`: update `tables` of some of those who took part.

        local["server_x"] is the new x, `current` as in `finish_clients`.
        """

    # --- Server ---------------------------------------------------------------------------------------

    def init(self, global_params: np.ndarray) -> ServerState:
        """t_0 = 0, u = 0, and `extras` of zeros."""
        extras = self.initial_extras(len(global_params))
        if self.momentum:
            extras["momentum"] = np.zeros_like(global_params)
        if self.observes_interval:
            extras |= returns.initial(self.num_clients)
        return self.begin(ServerState(global_params, np.zeros_like(global_params), 0, extras))

    def begin(self, state: ServerState) -> ServerState:
        """The state where this method begins: at x_0, and once more after the warm-up."""
        return state

    def initial_extras(self, num_params: int) -> Vectors:
        """The method's own state, the same on all ranks."""
        return {}

    def direction(self, state: ServerState, current: Round) -> tuple[np.ndarray, Vectors]:
        """What a round would add to x, and the extras that change: sum_n q_t^n Delta_t^n."""
        return current.sums["weighted_sum"], {}

    def increment(self, state: ServerState, current: Round) -> tuple[np.ndarray, ServerState]:
        """What round t adds to x, and the state after it; nothing at all where x does not move."""
        if self.observes_interval:
            there = current.clients[current.takes_part]
            state = self.with_extras(state, **returns.seen(state.extras, current.t, there))
        if not self.moves(current):
            return zeros_like(state.global_params), state
        direction, changed = self.direction(state, current)
        added = direction if self.server_lr == 1 else self.server_lr * direction
        if self.momentum:
            added = changed["momentum"] = self.momentum * state.extras["momentum"] + added
        return added, replace(state, extras={**state.extras, **changed}) if changed else state

    def moves(self, current: Round) -> bool:
        """Whether a round moves x; otherwise x and u stay the very same vectors."""
        return bool(current.takes_part.any()) or self.moves_without_participants

    def update(self, state: ServerState, added: np.ndarray) -> ServerState:
        """x_{t+1} = x_t + sum_n q_t^n Delta_t^n."""
        return replace(state, global_params=state.global_params + added)

    def accumulate(self, state: ServerState, added: np.ndarray) -> ServerState:
        """u = u + sum_n q_t^n Delta_t^n."""
        return replace(state, accumulated=state.accumulated + added)

    # --- Intervals of P rounds ------------------------------------------------------------------------

    def interval_ends(self, state: ServerState, t: int) -> bool:
        """t + 1 - t_0 = P; the warm-up is a separate interval, without amplification."""
        warmup = self.config.warmup_rounds
        if t < warmup:
            return t + 1 == warmup
        given = self.config.algorithm.amplify_every
        wanted = returns.interval(state.extras, given) if self.observes_interval else given
        return t + 1 - state.anchor_round >= wanted

    def amplify(self, state: ServerState, t: int) -> ServerState:
        """x_{t+1} = x_{t+1} + (eta - 1) u, with the eta of round t."""
        eta = self.config.amplification_at(t)
        return replace(state, global_params=state.global_params + (eta - 1) * state.accumulated)

    def restart(self, state: ServerState, t: int) -> ServerState:
        """t_0 = t + 1, u = 0."""
        return replace(state, anchor_round=t + 1, accumulated=zeros_like(state.accumulated))

    def clients_of_interval(self, state: ServerState) -> np.ndarray | None:
        """Clients whose tables the server reads when an interval ends; None if it never does."""
        return None

    def interval_rows(self, state: ServerState, local: Local, clients: np.ndarray) -> Any:
        """What each of these clients adds to the server's sum; may update `tables`."""
        raise NotImplementedError

    def end_interval(self, state: ServerState, total: np.ndarray) -> ServerState:
        """The state after the sum of `interval_rows` over all those clients."""
        raise NotImplementedError


class WarmUp(Method):
    """Plain FedAvg, and the method that begins when it is over."""

    def __init__(self, config: Config, num_clients: int, then: Method) -> None:
        super().__init__(config.plain(), num_clients)
        self._then = then

    def restart(self, state: ServerState, t: int) -> ServerState:
        """t_0 = t + 1, u = 0; the other method begins."""
        return self._then.begin(super().restart(state, t))
