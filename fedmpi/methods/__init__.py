"""What the server does with the weighted sum of the updates: one file per method.

A method is a class whose functions take a frozen state and return a new one. It imports neither torch nor
MPI, so it can be read and tested beside its paper.
"""

from __future__ import annotations

from fedmpi.config import Config
from fedmpi.methods.fedavg import GeneralizedFedAvg, ServerState

METHODS = {"fedavg": GeneralizedFedAvg}

__all__ = ["METHODS", "ServerState", "make_method"]


def make_method(config: Config) -> GeneralizedFedAvg:
    """The method that `algorithm.name` names."""
    return METHODS[config.algorithm.name](config)
