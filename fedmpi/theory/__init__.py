"""What the paper proves (Wang & Ji, NeurIPS 2022), as functions: from weights and gradients to the bound.

weights.py: Q, rho, evenness over P rounds. divergence.py: beta^2, nu^2, delta^2(P) for given gradients.
bound.py: Theorem 3.1 term by term, its conditions and learning rates. random_participation.py.
Invariant: pure functions of numpy arrays; neither torch nor MPI. Statements are numbered as in the paper,
where all kinds share one counter: the corollary on stochastic participation is 4.8.
"""

from fedmpi.theory.bound import (
    Constants,
    Rates,
    bound_terms,
    conditions,
    rates_3_2,
    rates_3_3,
    stochastic_interval,
    suits_3_3,
)
from fedmpi.theory.divergence import Divergence, deviations_of_gram, divergence, exact_delta2, round_split
from fedmpi.theory.random_participation import (
    chebyshev_delta2,
    expected_delta2,
    hoeffding_delta2,
    independent_variance,
    markov_long_run_variance,
    sampled_long_run_variance,
)
from fedmpi.theory.weights import Weights, delta2_factors, interval_grid, regularized_interval, rho

__all__ = [
    "Constants", "Divergence", "Rates", "Weights", "bound_terms", "chebyshev_delta2", "conditions",
    "delta2_factors", "deviations_of_gram", "divergence", "exact_delta2", "expected_delta2",
    "hoeffding_delta2", "independent_variance", "interval_grid", "markov_long_run_variance", "rates_3_2",
    "rates_3_3", "regularized_interval", "rho", "round_split", "sampled_long_run_variance",
    "stochastic_interval", "suits_3_3",
]  # fmt: skip
