"""What made a result: versions, hosts, devices, digests; kept as attributes of the result file."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import platform
import uuid
from typing import Any

from fedmpi import __version__
from fedmpi.config import Config
from fedmpi.mpi import Comm
from fedmpi.mpi.cuda_aware import cuda_aware_note
from fedmpi.mpi.device import device_name, gpu_id, missed_gpus, takes_turns, visible_gpus
from fedmpi.mpi.placement import Place, core_quota, to_json, usable_cores


def describe_job(comm: Comm, config: Config, device: Any, num_packed: int = 1) -> dict[str, Any]:
    """Collective. Attributes known before the first round; meant for rank 0's file.

    `num_packed`: how many runs go on in lockstep.
    """
    places = comm.gather(_place(comm, config, device)) or []
    created = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    leg = {"round": 0, "utc": created, "num_ranks": comm.size}
    return {
        "config": config.to_toml(),
        "creator": f"fedmpi {__version__}",
        "run_id": comm.on_root(lambda: uuid.uuid4().hex),
        "created_utc": created,
        "seed": config.run.seed,
        "num_ranks": comm.size,
        "mpi_library": comm.library,
        "host_names": [place.host for place in places],
        "device_names": [place.name for place in places],
        "placement": to_json(places),
        "versions": json.dumps(_versions()),
        # One entry for each time the run was started or resumed.
        "legs": json.dumps([leg | ({"runs_in_lockstep": num_packed} if num_packed > 1 else {})]),
    }


def _place(comm: Comm, config: Config, device: Any) -> Place:
    """What this rank reports about itself."""
    gpus, sends = visible_gpus(), config.run.cuda_aware and comm.size > 1
    return Place(
        rank=comm.rank,
        host=comm.host,
        node_rank=comm.device_rank,
        device=str(device),
        name=device_name(device),
        cores=usable_cores(),
        core_quota=core_quota(),
        threads=config.run.threads,
        visible_gpus=gpus,
        note=missed_gpus(config.run.device, gpus) or cuda_aware_note(device, sends),
        gpu=gpu_id(device),
        takes_turns=takes_turns(device),
    )


def _versions() -> dict[str, str]:
    packages = ("fedmpi", "torch", "numpy", "h5py", "mpi4py")
    versions = {"python": platform.python_version()}
    for package in packages:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions
