"""Slow, independent twins of all methods, to compare the simulator with. Pure numpy, one process.

Each follows the original's pseudocode, whose lines it cites in our notation, or its authors' code; it keeps
a dense table of what clients remember and shares nothing with fedmpi/methods, neither code nor a shortcut.
What a round without participants does is for each twin to say. `run` adds what is common to all: warm-up,
server_lr, momentum, amplification.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

Gradient = Callable[[int, int, np.ndarray], np.ndarray]  # (client, minibatch number, y) -> g_n(y)


@dataclass
class Problem:
    """What is simulated."""

    gradient: Gradient
    full_gradient: Gradient
    q: np.ndarray  # (T, N)
    x_0: np.ndarray
    gamma: Callable[[int], float]  # of a round
    steps_of: Callable[[int, int], int]  # I of a client in a round
    warmup_rounds: int = 0
    eta: float = 1.0
    period: int = 1
    server_lr: float = 1.0
    momentum: float = 0.0
    at_x: Callable[[int, np.ndarray], tuple[float, np.ndarray]] | None = None  # F_n and grad F_n
    per_round: int | None = None  # S, where the method chooses; None: all
    drawn: dict[int, int] = field(default_factory=dict)  # minibatches of each client so far

    def sample(self, n: int, y: np.ndarray, *, full: bool = False) -> np.ndarray:
        """g_n(y) on the client's next minibatch."""
        number = self.drawn.get(n, 0)
        self.drawn[n] = number + 1
        return (self.full_gradient if full else self.gradient)(n, number, y)


def run(problem: Problem, kind: type[FedAvg], **options: float) -> list[np.ndarray]:
    """x_0, x_1, ..., x_T of a method."""
    method, warmup = kind(problem, **options), FedAvg(problem)
    x = anchor = np.array(problem.x_0, np.float64)
    momentum, anchor_round, trajectory = np.zeros(len(x)), 0, [x]
    method.begin(x)
    for t, q in enumerate(problem.q):
        who = np.flatnonzero(q).tolist()
        if t < problem.warmup_rounds:
            added = warmup.round(t, x, who)
            x = x if added is None else x + added
            if t + 1 == problem.warmup_rounds:
                anchor, anchor_round = x, t + 1
                method.begin(x)
        else:
            added = method.round(t, x, who)
            if added is not None:  # None: this method skips the round
                momentum = problem.momentum * momentum + problem.server_lr * added
                x = x + momentum
            if t + 1 - anchor_round == problem.period:
                x = anchor + problem.eta * (x - anchor)
                anchor, anchor_round = x, t + 1
                method.interval_over()
            method.received(who, x)
        trajectory.append(x)
    return trajectory


class FedAvg:
    """Wang & Ji (2022), Algorithm 1.

    Lines 5-6: y_{i+1} = y_i - gamma g_n(y_i), from y_0 = x_t. Line 7: D_n = y_I - x_t.
    Line 9: x_{t+1} = x_t + sum_n q_n D_n, an empty sum if nobody takes part.
    """

    def __init__(self, problem: Problem) -> None:
        self.p = problem
        self.n_all = problem.q.shape[1]
        self.zeros = np.zeros((self.n_all, len(problem.x_0)))

    def round(self, t: int, x: np.ndarray, who: list[int]) -> np.ndarray | None:
        """What the round adds to x; None if nobody takes part."""
        if not who:
            return None
        return sum(self.p.q[t, n] * self.local(t, n, x) for n in who)

    def local(self, t: int, n: int, x: np.ndarray) -> np.ndarray:
        """D_n = y_I - x."""
        y = x
        for _ in range(self.p.steps_of(t, n)):
            y = y - self.p.gamma(t) * self.p.sample(n, y)
        return y - x

    def interval_over(self) -> None:
        """P rounds are over."""

    def begin(self, x: np.ndarray) -> None:
        """The method begins, at this x: the first, or that after the warm-up."""

    def received(self, who: list[int], x: np.ndarray) -> None:
        """After the round; those present have the new x."""


class WaitMinibatch(FedAvg):
    """Wang & Ji (2022), experiments; in their main.py `node_subset` is everybody once the warm-up is over.

    One update a cycle of the availability, for which the clock goes on by the whole cycle.
    """

    full = False

    def __init__(self, problem: Problem, cycle: int) -> None:
        super().__init__(problem)
        self.cycle, self.waited = cycle, 0

    def round(self, t, x, who):
        self.waited += 1
        if self.waited < self.cycle:
            return None
        self.waited = 0
        return np.mean([self.local(t, n, x) for n in range(self.n_all)], axis=0)

    def local(self, t, n, x):
        y = x
        for _ in range(self.p.steps_of(t, n)):
            y = y - self.p.gamma(t) * self.p.sample(n, y, full=self.full)
        return y - x


class WaitFull(WaitMinibatch):
    """The same with their `sample_full_batch`: each step on all of a client's data."""

    full = True


class Mifa(FedAvg):
    """Gu et al. (2021), Algorithm 1; FedLaAvg (Yan et al., 2020) is the same from zeros.

    Those present: G_n <- (x_t - y_I) / gamma_t; all others keep G_n.
    Then, in every round: x_{t+1} = x_t - gamma_t (1/N) sum over all n of G_n. The authors' `aggregate`
    (fdu_no_wait.py) and FedLaAvg's `update` (server.py) ask for nobody to be present.
    With a warm start (fdu.py) x waits until everybody has been there once.
    """

    def __init__(self, problem: Problem, *, wait: bool) -> None:
        super().__init__(problem)
        self.table, self.wait, self.unseen = self.zeros.copy(), wait, set(range(self.n_all))

    def round(self, t, x, who):
        for n in who:
            y = x + self.local(t, n, x)
            self.table[n] = (x - y) / self.p.gamma(t)
            self.unseen.discard(n)
        if self.wait and self.unseen:
            return np.zeros(len(x))
        return -self.p.gamma(t) * self.table.mean(axis=0)


class FedAU(FedAvg):
    """Wang & Ji (2024), Algorithm 2, and main.py: counters that go up in every round, lists of intervals.

    Weight: 1 before the first interval, then the mean of the recorded ones. Those present record their
    counter + 1 after they used the weight; a counter that reaches K is recorded and starts again.
    x_{t+1} = x_t + eta (1/N) sum over those present of w_n D_n.
    """

    def __init__(self, problem: Problem, cutoff: float = np.inf) -> None:
        super().__init__(problem)
        self.cutoff = cutoff
        self.absent = [0] * self.n_all
        self.intervals: list[list[int]] = [[] for _ in range(self.n_all)]

    def weight(self, n: int) -> float:
        """w_n."""
        return float(np.mean(self.intervals[n])) if self.intervals[n] else 1.0

    def round(self, t, x, who):
        added = sum((self.weight(n) * self.local(t, n, x) for n in who), np.zeros(len(x))) / self.n_all
        for n in range(self.n_all):
            self.absent[n] += 1  # c_n + 1, for participants too
            if n in who or self.absent[n] == self.cutoff:
                self.intervals[n].append(self.absent[n])
                self.absent[n] = 0
        return added if who else None


class FedVarp(FedAvg):
    """Jhunjhunwala et al. (2022), Algorithm 1.

    v = (1/S) sum over those present of (D_n - y_n) + (1/N) sum over all n of y_n, with the y_n of before;
    x <- x + eta v; then y_n <- D_n for those present. The sum over nobody has no divisor: x stays, as in
    FedAU's main.py.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.table = self.zeros.copy()

    def round(self, t, x, who):
        if not who:
            return None
        old = self.table.copy()
        for n in who:
            self.table[n] = self.local(t, n, x)
        return (self.table[who] - old[who]).sum(axis=0) / len(who) + old.mean(axis=0)


class Scaffold(FedAvg):
    """Karimireddy et al. (2020), Algorithm 1 with Option II.

    Client: y <- y - gamma (g_n(y) - c_n + c); at the end (ii) c_n+ = c_n - c + (x - y) / (I gamma).
    Server: c <- c + (1/N) sum over those present of (c_n+ - c_n); x moves by the mean of y - x, here by q.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.control, self.c = self.zeros.copy(), np.zeros(len(problem.x_0))

    def round(self, t, x, who):
        if not who:
            return None
        gamma, before = self.p.gamma(t), self.c
        added, changes = np.zeros(len(x)), []
        for n in who:
            y, steps = x, self.p.steps_of(t, n)
            for _ in range(steps):
                y = y - gamma * (self.p.sample(n, y) - self.control[n] + before)
            new = self.control[n] - before + (x - y) / (steps * gamma)
            changes.append(new - self.control[n])
            self.control[n] = new
            added = added + self.p.q[t, n] * (y - x)
        self.c = before + sum(changes) / self.n_all
        return added


class AmplifiedScaffold(FedAvg):
    """Crawshaw & Liu (2024), Algorithm 1, and `Correction` in their util.py.

    Steps as SCAFFOLD's, with c_n and c of the period's start; every raw gradient of the period is kept
    (`update`). When it ends (`reset`): c_n <- the mean of the client's, where it has any; c <- mean of c_n.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.control = self.zeros.copy()
        self.of_period: dict[int, list[np.ndarray]] = {}

    def local(self, t, n, x):
        y, c = x, self.control.mean(axis=0)
        for _ in range(self.p.steps_of(t, n)):
            gradient = self.p.sample(n, y)
            self.of_period.setdefault(n, []).append(gradient)
            y = y - self.p.gamma(t) * (gradient - self.control[n] + c)
        return y - x

    def interval_over(self):
        for n, gradients in self.of_period.items():
            self.control[n] = np.mean(gradients, axis=0)
        self.of_period = {}


class FedProx(FedAvg):
    """Li et al. (2020), Algorithm 2: steps on h(y) = F_n(y) + (mu/2) |y - x|^2, so g + mu (y - x)."""

    def __init__(self, problem: Problem, mu: float) -> None:
        super().__init__(problem)
        self.mu = mu

    def local(self, t, n, x):
        y = x
        for _ in range(self.p.steps_of(t, n)):
            y = y - self.p.gamma(t) * (self.p.sample(n, y) + self.mu * (y - x))
        return y - x


class FedAdam(FedAvg):
    """Reddi et al. (2021), Algorithm 2, without bias correction.

    m <- b1 m + (1 - b1) d; FedAdam: v <- b2 v + (1 - b2) d^2; x <- x + eta m / (sqrt v + tau).
    It begins with v of tau^2, the least that its line on initial values allows.
    """

    def __init__(self, problem: Problem, b1: float, b2: float, tau: float) -> None:
        super().__init__(problem)
        self.b1, self.b2, self.tau = b1, b2, tau
        self.m, self.v = np.zeros(len(problem.x_0)), np.full(len(problem.x_0), tau * tau)

    def round(self, t, x, who):
        d = super().round(t, x, who)
        if d is None:
            return None
        self.m = self.b1 * self.m + (1 - self.b1) * d
        self.v = self.next_v(d**2)
        return self.m / (np.sqrt(self.v) + self.tau)

    def next_v(self, d2: np.ndarray) -> np.ndarray:
        """v of the next round."""
        return self.b2 * self.v + (1 - self.b2) * d2


class FedYogi(FedAdam):
    """The line for FedYogi there: v <- v - (1 - b2) d^2 sign(v - d^2)."""

    def next_v(self, d2):
        return self.v - (1 - self.b2) * d2 * np.sign(self.v - d2)


class Focus(FedAvg):
    """Ying et al. (2025), Algorithm 1, and FedASL's client.py and server.py.

    Client, from w = x and z = 0: in each step but the first w <- w - gamma z; z <- z + g - h_n; h_n <- g.
    Server: Y <- Y + sum over those present of z_n; x <- x - gamma Y.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.h, self.tracker = self.zeros.copy(), np.zeros(len(problem.x_0))

    def round(self, t, x, who):
        if not who:
            return None
        for n in who:
            w, z = x, np.zeros(len(x))
            for k in range(1, self.p.steps_of(t, n) + 1):
                if k > 1:
                    w = w - self.p.gamma(t) * z
                g = self.p.sample(n, w)
                z = z + g - self.h[n]
                self.h[n] = g
            self.tracker = self.tracker + z
        return -self.p.gamma(t) * self.tracker


class FedStale(FedAvg):
    """Rodio & Neglia (2024), Algorithm 1, with any weights q for their 1 / (N p).

    v = sum over those present of q_n (D_n - beta h_n) + beta (1/N) sum over all n of h_n, with the h_n of
    before; x <- x + eta v; then h_n <- D_n for those present.
    """

    def __init__(self, problem: Problem, beta: float) -> None:
        super().__init__(problem)
        self.beta, self.table = beta, self.zeros.copy()

    def round(self, t, x, who):
        if not who:
            return None
        stale = self.beta * self.table
        added = stale.mean(axis=0)
        for n in who:
            self.table[n] = self.local(t, n, x)
            added = added + self.p.q[t, n] * (self.table[n] - stale[n])
        return added


class DebiasingFedAvg(FedAvg):
    """Sun et al. (2025), Debiasing FedAvg: estimates from visits, on line, of all clients in every round.

    A running mean of "was there": r <- r + (1[there] - r) / (rounds so far), for everybody; then
    x <- x + (1/N) sum over those present of D_n / r_n.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.rounds, self.rate = 0, np.zeros(self.n_all)

    def round(self, t, x, who):
        self.rounds += 1
        there = np.isin(np.arange(self.n_all), who)
        self.rate = self.rate + (there - self.rate) / self.rounds
        if not who:
            return None
        return sum(self.local(t, n, x) / self.rate[n] for n in who) / self.n_all


class FedExP(FedAvg):
    """Jhunjhunwala, Wang & Joshi (2023), Algorithm 1; other weights p as their main.py, with `p_sum`.

    eta_g = max(1, sum of p_n |D_n|^2 / (2 (|sum of p_n D_n|^2 + epsilon))), where p = q / sum of q;
    x <- x + eta_g sum of q_n D_n.
    """

    def __init__(self, problem: Problem, epsilon: float) -> None:
        super().__init__(problem)
        self.epsilon = epsilon

    def round(self, t, x, who):
        if not who:
            return None
        updates, q = np.array([self.local(t, n, x) for n in who]), self.p.q[t, who]
        p = q / q.sum()
        squares = p @ np.linalg.norm(updates, axis=1) ** 2
        rate = squares / (2 * (np.linalg.norm(p @ updates) ** 2 + self.epsilon))
        return max(1.0, rate) * (q @ updates)


class FedDyn(FedAvg):
    """Acar et al. (2021), Algorithm 1, whose argmin is taken by I steps of SGD, as in their code.

    Client: L(y) = F_n(y) - <h_n, y> + (alpha/2) |y - x|^2; h_n <- h_n - alpha (y_I - x).
    Server: h <- h - alpha (1/N) sum over those present of (y_I - x); x <- mean of y_I - h / alpha.
    """

    def __init__(self, problem: Problem, alpha: float) -> None:
        super().__init__(problem)
        self.alpha, self.control, self.h = alpha, self.zeros.copy(), np.zeros(len(problem.x_0))

    def round(self, t, x, who):
        if not who:
            return None
        mean, total = np.zeros(len(x)), np.zeros(len(x))
        for n in who:
            y = x
            for _ in range(self.p.steps_of(t, n)):
                slope = self.p.sample(n, y) - self.control[n] + self.alpha * (y - x)
                y = y - self.p.gamma(t) * slope
            self.control[n] = self.control[n] - self.alpha * (y - x)
            mean, total = mean + self.p.q[t, n] * (y - x), total + (y - x)
        self.h = self.h - self.alpha * total / self.n_all
        return mean - self.h / self.alpha


class FedAWE(FedAvg):
    """Xiang et al. (2024), Algorithm 1, and varying_awe.py: a model of each client, counters of absence.

    All models are x_0 and all counters 1 at first (`not_participate_count_at_node`). Those present: y_n
    from their own x_n; x <- mean of x_n + eta_g counter_n (y_n - x_n); then x_n <- x and the counter is 1.
    All others: counter + 1, and x_n stays.
    """

    def __init__(self, problem: Problem, echo: float = 1.0) -> None:
        super().__init__(problem)
        self.echo, self.counters = echo, [1] * self.n_all

    def begin(self, x):
        self.models = np.tile(x, (self.n_all, 1))

    def round(self, t, x, who):
        sent = [
            self.models[n] + self.echo * self.counters[n] * self.local(t, n, self.models[n]) for n in who
        ]
        self.counters = [1 if n in who else count + 1 for n, count in enumerate(self.counters)]
        return np.mean(sent, axis=0) - x if who else None

    def received(self, who, x):
        self.models[who] = x


class FedPBC(FedAWE):
    """Xiang et al. (2023), Algorithm 1, and static_pbc.py: everybody trains, and x comes late.

    In every round x_n <- y_n for all n, from their own x_n; x <- mean of x_n over those present, who then
    have x_n <- x. If nobody is present, x stays, but all have trained.
    """

    def round(self, t, x, who):
        for n in range(self.n_all):
            self.models[n] = self.models[n] + self.local(t, n, self.models[n])
        return self.models[who].mean(axis=0) - x if who else None


class F3AST(FedAvg):
    """Ribero et al. (2022), Algorithm 1, and `update_vectors` of their training_utils.py.

    -dH/dr_n = p_n^2 / r_n^2, the S largest of those available (`top_k`: of equal ones the first); r <-
    (1 - beta) r, plus beta for the chosen; x <- x + sum over the chosen of p_n / r_n D_n; p_n = 1/N, and
    so is r_n at first.
    """

    def __init__(self, problem: Problem, beta: float) -> None:
        super().__init__(problem)
        self.beta, self.r = beta, np.full(self.n_all, 1 / self.n_all)

    def round(self, t, x, who):
        p = 1 / self.n_all
        gain = {n: (p / self.r[n]) ** 2 for n in who}
        chosen = sorted(who, key=lambda n: (-gain[n], n))[: self.p.per_round]
        self.r = np.array([(1 - self.beta) * r + self.beta * (n in chosen) for n, r in enumerate(self.r)])
        return sum(p / self.r[n] * self.local(t, n, x) for n in chosen) if who else None


class CAFed(FedAvg):
    """Rodio et al. (2023), Algorithm 1, and `MarkovianClientsSampler` in their clients_sampler.py.

    Lines 3-5: hear who is there and their losses, update estimates, q = alpha / pi with alpha = 1/N. Lines
    6-7: `_truncate_clients`, first by |lambda| from the largest, then by pi from the smallest. Then the
    available with q > 0 train, and x <- x + sum of q_n D_n. The history of everybody is kept as it was.
    """

    def __init__(self, problem: Problem, tolerance: float, kappa: float, memory: float) -> None:
        super().__init__(problem)
        self.tolerance, self.kappa, self.memory = tolerance, kappa, memory
        self.history: list[set[int]] = []
        self.loss: dict[int, float] = {}

    def round(self, t, x, who):
        self.history.append(set(who))
        heard = {n: self.p.at_x(n, x)[0] for n in who}
        if heard and not self.loss:
            self.loss = {n: np.mean(list(heard.values())) for n in range(self.n_all)} | heard
        elif heard:
            self.loss |= {n: self.memory * self.loss[n] + (1 - self.memory) * heard[n] for n in who}
        pi, lam = np.array([self.estimates(n) for n in range(self.n_all)]).T
        losses = np.array([self.loss.get(n, 0.0) for n in range(self.n_all)])
        q = 1 / self.n_all / pi
        q = self.truncate(q, sorted(range(self.n_all), key=lambda n: -abs(lam[n])), pi, losses)
        q = self.truncate(q, sorted(range(self.n_all), key=lambda n: pi[n]), pi, losses)
        kept = [n for n in who if q[n] > 0]
        return sum(q[n] * self.local(t, n, x) for n in kept) if kept else None

    def estimates(self, n: int) -> tuple[float, float]:
        """pi_n and lambda_n from the whole history, with half a visit more of each kind."""
        there = [n in present for present in self.history]
        pairs = list(itertools.pairwise(there))
        stays = (pairs.count((True, True)) + 0.5) / (sum(a for a, _ in pairs) + 1)
        away = (pairs.count((False, False)) + 0.5) / (sum(not a for a, _ in pairs) + 1)
        return (sum(there) + 0.5) / (len(there) + 1), stays + away - 1

    def truncate(self, q, order, pi, losses):
        """`_truncate_clients`."""
        best = self.objective(q, pi, losses)
        for n in order:
            without = np.where(np.arange(self.n_all) == n, 0, q)
            if without.sum() == 0:
                break
            found = self.objective(without, pi, losses)
            if best - found >= self.tolerance:
                q, best = without, found
        return q

    def objective(self, q, pi, losses) -> float:
        """`_estimate_optimization_objective`."""
        w = pi * q / (pi * q).sum()
        tv = 0.5 * np.linalg.norm(w - 1 / self.n_all, ord=1)
        return w @ losses + self.kappa * losses.max() * tv**2


class MimeLite(FedAvg):
    """Karimireddy et al. (2021), Algorithm 1 for MimeLite, with the row SGDm of their table.

    U: y <- y - gamma ((1 - beta) g_n(y) + beta m), m of the round's start; V: m <- (1 - beta) c + beta m,
    with c the mean over those present of the full-batch gradients at x.
    """

    def __init__(self, problem: Problem, beta: float) -> None:
        super().__init__(problem)
        self.beta, self.m = beta, np.zeros(len(problem.x_0))

    def local(self, t, n, x):
        y = x
        for _ in range(self.p.steps_of(t, n)):
            y = y - self.p.gamma(t) * ((1 - self.beta) * self.p.sample(n, y) + self.beta * self.m)
        return y - x

    def round(self, t, x, who):
        added = super().round(t, x, who)
        if who:
            c = np.mean([self.p.at_x(n, x)[1] for n in who], axis=0)
            self.m = (1 - self.beta) * c + self.beta * self.m
        return added


class FedNova(FedAvg):
    """Wang et al. (2020), Section 4.1, for SGD without momentum: a_n is a vector of tau_n ones.

    d_n = (y_n - x) / |a_n|_1; tau_eff = sum of p_n tau_n; x <- x + tau_eff sum of p_n d_n. p_n sums to 1:
    of other weights q, p = q / sum of q, and the whole is scaled by sum of q as FedAvg is.
    """

    def round(self, t, x, who):
        if not who:
            return None
        taus, q = np.array([self.p.steps_of(t, n) for n in who]), self.p.q[t, who]
        d = np.array([self.local(t, n, x) for n in who]) / taus[:, None]
        p = q / q.sum()
        return q.sum() * (p @ taus) * (p @ d)
