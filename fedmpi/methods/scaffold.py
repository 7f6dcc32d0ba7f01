"""SCAFFOLD (Karimireddy et al., 2020): local steps corrected by control variates.

y <- y - gamma (g - c_n + c). Option II: the new c_n is the plain average of the raw gradients of the local
steps. x moves by 1/S of the updates' sum, c by 1/N of the sum of the *changes* of c_n. Invariant: c is the
mean of all c_n.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedmpi.config.records import replace
from fedmpi.methods.base import Local, Method, Rate, Round, ServerState, Vectors, add_scaled, method


@method("scaffold")
class Scaffold(Method):
    """SCAFFOLD: control variates against client drift; c_n and c are zero at first."""

    tables = ("control",)
    scratch = ("gradient_sum",)
    broadcasts = ("control",)
    client_sums = ("change",)
    sends = receives = 2  # a control beside update and x
    steps_by_itself = True
    rate_on_device = True

    def initial_extras(self, num_params: int) -> Vectors:
        """The server's control c."""
        return {"control": np.zeros(num_params)}

    def step(self, local: Local, gradient: Any, local_lr: Rate) -> None:
        """y <- y - gamma (g - c_n + c)."""
        local["gradient_sum"].add_(gradient)
        corrected = gradient - local["control"] + local["server_control"]
        add_scaled(local["update"], corrected, -local_lr)

    def finish_clients(self, local: Local, current: Round) -> None:
        """c_n <- mean of the raw gradients."""
        new = local["gradient_sum"] / self.steps_taken(current, local["gradient_sum"])
        local["change"] = new.double() - local["control"].double()
        local["control"].copy_(new)

    def direction(self, state: ServerState, current: Round) -> tuple[np.ndarray, Vectors]:
        """The weighted sum of updates; c <- c + (1/N) sum of the changes."""
        control = state.extras["control"] + current.sums["change"] / self.num_clients
        return current.sums["weighted_sum"], {"control": control}


@method("amplified-scaffold", reads_interval=True, start={"amplification": 2.0, "amplify_every": 20})
class AmplifiedScaffold(Scaffold):
    """Amplified SCAFFOLD (Crawshaw & Liu, 2024): controls frozen within an interval of P rounds.

    Participants sum raw gradients s_n over the interval. When it ends, x <- x_{t_0} + eta (x - x_{t_0}),
    which is Algorithm 1's amplification, and of every n that took part c_n <- s_n / m_n with m_n the
    gradients summed. P = 1, eta = 1 is SCAFFOLD.
    """

    tables = ("control", "gradient_sum")
    scratch = ()
    client_sums = ()

    def initial_extras(self, num_params: int) -> Vectors:
        """c, and how many gradients each client has summed in this interval."""
        return {"control": np.zeros(num_params), "num_gradients": np.zeros(self.num_clients, np.int64)}

    def finish_clients(self, local: Local, current: Round) -> None:
        """Nothing: controls change when the interval ends."""

    def direction(self, state: ServerState, current: Round) -> tuple[np.ndarray, Vectors]:
        """The weighted sum of updates; m_n <- m_n + I_n."""
        counts = state.extras["num_gradients"].copy()
        counts[current.clients] += self.local_steps.of(current.t, current.clients)
        return current.sums["weighted_sum"], {"num_gradients": counts}

    def clients_of_interval(self, state: ServerState) -> np.ndarray:
        """Everybody with m_n > 0."""
        return np.flatnonzero(state.extras["num_gradients"])

    def interval_rows(self, state: ServerState, local: Local, clients: np.ndarray) -> Any:
        """s_n / m_n - c_n; then c_n <- s_n / m_n, s_n <- 0."""
        sums, control = local["gradient_sum"], local["control"]
        counts = sums.new_tensor(state.extras["num_gradients"][clients].astype(float))
        new = sums / counts[:, None]
        change = new.double() - control.double()
        control.copy_(new)
        sums.zero_()
        return change

    def end_interval(self, state: ServerState, total: np.ndarray) -> ServerState:
        """c <- c + (1/N) sum of the changes; m_n <- 0."""
        control = state.extras["control"] + total / self.num_clients
        counts = np.zeros(self.num_clients, np.int64)
        return replace(state, extras={**state.extras, "control": control, "num_gradients": counts})
