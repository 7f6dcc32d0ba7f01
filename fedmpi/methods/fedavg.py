"""Generalized FedAvg with amplified updates, Algorithm 1 of Wang & Ji (2022): what `Method` does."""

from __future__ import annotations

from fedmpi.methods.base import Method, method


@method("fedavg", takes_late=True, start={"amplification": 2.0, "amplify_every": 20})
class GeneralizedFedAvg(Method):
    """Generalized FedAvg: participants take I steps from x; x moves by the q-weighted sum of updates."""
