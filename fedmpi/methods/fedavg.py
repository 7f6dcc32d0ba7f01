"""Generalized FedAvg with amplified updates, Algorithm 1 of Wang & Ji (2022): what `Method` does."""

from __future__ import annotations

from fedmpi.methods.base import Method
from fedmpi.methods.registry import method


@method("fedavg")
class GeneralizedFedAvg(Method):
    """Every participant takes I steps from x; x moves by the q-weighted sum of the updates."""
