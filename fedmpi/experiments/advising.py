"""What theory says about a config, with constants measured over all ranks: for `fedmpi advise`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from fedmpi.config import Config
from fedmpi.config.compositions import availabilities_in
from fedmpi.errors import UserError
from fedmpi.mpi import Comm
from fedmpi.participation import Participation, make_participation
from fedmpi.theory.advice import Adviser, Known, known_of_quadratic, look_ahead
from fedmpi.theory.long_run import long_run

if TYPE_CHECKING:
    from fedmpi.simulation.outcome import Listener


def adviser_of(config: Config, known: Known | None = None) -> Adviser:
    """All that theory says about a config; `known` constants, or those of a quadratic problem."""
    if known is None and config.data.dataset == "quadratic":
        known = known_of_quadratic(config)
    participation, num_clients = participation_of(config)
    q = look_ahead(config, participation, num_clients)
    return Adviser(config, q, known, long_run(config, participation, q))


def participation_of(config: Config) -> tuple[Participation, int]:
    """(participation, number of clients); the data are read only if participation depends on them."""
    num_clients = config.data.num_clients
    from_labels = any(one.probability_from for one in availabilities_in(config.participation))
    if num_clients is not None and not from_labels:
        return make_participation(config, num_clients), num_clients
    from fedmpi.data.partition import client_labels, make_partition
    from fedmpi.data.sources import load_dataset

    data = load_dataset(config.data)
    partition = make_partition(
        data.train_labels, data.train_clients, data.num_classes, config.data, config.run.seed
    )
    labels = client_labels(partition, data.train_labels, data.num_classes)
    return make_participation(config, partition.num_clients, labels), partition.num_clients


def measure(comm: Comm, config: Config, at: str | None, listener: Listener | None = None) -> Known:
    """Collective. Constants at the model of a result file, or at x_0; the listener counts clients."""
    from fedmpi.experiments.lifecycle import prepare  # torch takes seconds to load
    from fedmpi.simulation.outcome import Listener

    listener = listener or Listener()
    simulation, _ = prepare(comm, config)
    x, where = simulation.global_params, "x_0"
    if at:
        x, where = comm.on_root(lambda: _params_of(at)), at
        if len(x) != len(simulation.global_params):
            raise UserError.on_all_ranks(
                f"--at {at}: its model has {len(x):,} parameters, the config's "
                f"{len(simulation.global_params):,}; give a run of this config",
                2,
            )
    listener.expects(simulation.probe.steps)
    constants = simulation.probe.measure(x, listener.round_done)
    listener.ended(simulation.probe.steps)
    return Known(
        source=f"estimates at a point: {where}",
        smoothness=constants.smoothness,
        sigma2=constants.sigma2,
        gap=constants.gap,
        d2=constants.d2,
        deviations=constants.deviations,
    )


def _params_of(path: str) -> np.ndarray:
    from fedmpi.storage.reader import load_run

    return load_run(path).global_params
