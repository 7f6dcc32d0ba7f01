"""Who takes part in the first rounds of a config: counts, absences, weights, and a sample to plot.

Invariant: rounds are asked for once, in ascending order; memory is O(N + rounds), whoever takes part.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fedmpi.participation import Participation
from fedmpi.participation.delivery import NEVER

AWAY, AVAILABLE, TAKING_PART = 0, 1, 2
_MOST_ROUNDS = 2000
_MOST_VISITS = 2 * 10**8  # clients times rounds; at a million clients a few seconds
_SAMPLE = 250  # clients to plot


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What was seen in the first rounds."""

    num_clients: int
    window: int  # P: rounds in which everybody should be seen
    participants: np.ndarray  # (rounds,)
    available: np.ndarray  # (rounds,)
    weight_sums: np.ndarray  # (rounds,)
    square_sums: np.ndarray  # (rounds,) sum_n (q_t^n)^2
    times: np.ndarray  # (num_clients,) rounds that each took part in
    gaps: np.ndarray  # gaps[k]: how often a client came back k rounds after it last took part
    lost: int  # updates that never arrive
    late: int  # and those that do in a later round
    longest_absence: int
    seen_shares: np.ndarray  # share of clients seen in each whole window
    sample: np.ndarray  # clients in `raster`
    raster: np.ndarray  # (rounds, len(sample)): AWAY, AVAILABLE or TAKING_PART

    @property
    def rho(self) -> float:
        """The least rho with sum_n (q_t^n)^2 <= rho^2 in all rounds seen."""
        return float(np.sqrt(self.square_sums.max()))


def rounds_to_see(num_rounds: int, num_clients: int, window: int) -> int:
    """How many rounds a survey takes: one window if it is not too long, more where N is small."""
    affordable = min(_MOST_ROUNDS, _MOST_VISITS // num_clients)
    return min(num_rounds, max(affordable, min(window, _MOST_ROUNDS), 1))


def survey(participation: Participation, num_clients: int, rounds: int, window: int) -> Survey:
    """Ask for the first rounds and count."""
    sample = np.unique(np.linspace(0, num_clients - 1, min(num_clients, _SAMPLE)).astype(int))
    place = np.full(num_clients, -1)
    place[sample] = np.arange(len(sample))
    raster = np.full((rounds, len(sample)), AWAY, np.uint8)
    per_round = np.zeros((4, rounds))
    times, last_seen = np.zeros(num_clients, np.int64), np.full(num_clients, -1)
    gaps, longest, shares, lost, late = np.zeros(rounds + 1, np.int64), 0, [], 0, 0
    for t in range(rounds):
        available = participation.available(t)
        clients, weights = participation.weights(t)
        per_round[:, t] = len(clients), len(available), weights.sum(), weights @ weights
        away = participation.undelivered(t)[1] == NEVER
        lost, late = lost + int(away.sum()), late + int((~away).sum())
        since = t - last_seen[clients]
        longest = max(longest, int(since.max(initial=1)) - 1)
        gaps += np.bincount(since[last_seen[clients] >= 0], minlength=rounds + 1)
        times[clients] += 1
        last_seen[clients] = t
        for ids, what in ((available, AVAILABLE), (clients, TAKING_PART)):
            drawn = place[ids]
            raster[t, drawn[drawn >= 0]] = what
        if (t + 1) % window == 0:
            shares.append(np.mean(last_seen > t - window))
    longest = max(longest, int((rounds - 1 - last_seen).max()))
    counts = per_round[:2].astype(np.int64)
    return Survey(
        num_clients=num_clients,
        window=window,
        participants=counts[0],
        available=counts[1],
        weight_sums=per_round[2],
        square_sums=per_round[3],
        times=times,
        gaps=gaps,
        lost=lost,
        late=late,
        longest_absence=longest,
        seen_shares=np.array(shares),
        sample=sample,
        raster=raster,
    )


def survey_lines(seen: Survey, *, weights_count: bool = True) -> list[str]:
    """The survey as text; without the weights q where no one uses them."""
    people, rounds = seen.participants, len(seen.participants)
    sums = seen.weight_sums
    lines = [
        f"participation  first {rounds:,} rounds: {people.min()} to {people.max()} clients a round "
        f"(mean {people.mean():.1f}), {np.count_nonzero(people == 0):,} rounds without any",
        f"               available {seen.available.min():,} to {seen.available.max():,} clients a round "
        f"(mean {seen.available.mean():.1f})",
        f"               {np.count_nonzero(seen.times):,} of {seen.num_clients:,} clients seen, each "
        f"{seen.times.min()} to {seen.times.max()} times; longest absence {seen.longest_absence:,} rounds",
    ]
    if seen.lost or seen.late:
        lines.append(f"               {seen.lost:,} updates lost, {seen.late:,} late by a round or more")
    if weights_count:
        lines.append(
            f"               sum of weights q in a round: {sums.min():.6g} to {sums.max():.6g}; "
            f"rho {seen.rho:.4g} (largest root of the sum of q^2)"
        )
    if len(seen.seen_shares):
        shares = 100 * seen.seen_shares
        lines.append(
            f"               seen in {seen.window:,} rounds (P): {shares.mean():.1f} % of the clients, "
            f"at least {shares.min():.1f} %"
        )
    else:
        lines.append(
            f"               seen in {seen.window:,} rounds (P): unknown, only {rounds:,} rounds examined"
        )
    return lines
