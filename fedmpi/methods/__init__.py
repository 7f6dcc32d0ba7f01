"""What clients and server do beyond plain local SGD: one file per method, variations of `base.Method`."""

from __future__ import annotations

from fedmpi.config.keys import Config
from fedmpi.methods.base import METHODS, Method, Round, ServerState, WarmUp, method

# They register themselves, in the order in which their names are listed.
from fedmpi.methods import fedavg, wait, mifa, fedau, fedvarp, scaffold, fedprox, adaptive, focus  # isort: skip # noqa: F401
from fedmpi.methods import fedstale, debiasing, fedexp, feddyn, fedawe, fedpbc  # isort: skip # noqa: F401
from fedmpi.methods import f3ast, ca_fed, mimelite, fednova  # isort: skip # noqa: F401

__all__ = ["METHODS", "Method", "Round", "ServerState", "WarmUp", "make_method", "method"]


def make_method(config: Config, num_clients: int) -> Method:
    """The method that `algorithm.name` names: a built-in one, or a user's package.module:Class."""
    name = config.algorithm.name
    if name in METHODS:
        return METHODS[name](config, num_clients)
    from fedmpi.config.user_code import import_function
    from fedmpi.errors import UserError

    kind = import_function(name, "algorithm.name")
    if not (isinstance(kind, type) and issubclass(kind, Method)):
        raise UserError(
            f'config algorithm.name = "{name}": expected a class derived from fedmpi.methods.Method'
        )
    return kind(config, num_clients)
