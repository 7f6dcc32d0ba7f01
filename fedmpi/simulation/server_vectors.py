"""Where x, u and a method's own vectors lie: on the host, or on a GPU in float64.

On a GPU what a round adds to x comes out of the sum there, and the clients of the next round start from it
there: only what MPI, files and evaluation records need is copied. Methods of the user's own, which may be
written for numpy, keep their vectors on the host.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from fedmpi.methods import Method, ServerState
from fedmpi.mpi import Comm
from fedmpi.simulation.shares import Vector


def may_stay_on_device(method: Method, device: torch.device) -> bool:
    """Whether a method takes tensors for its vectors."""
    return device.type == "cuda" and type(method).__module__.startswith("fedmpi.")


def to_device(state: ServerState, device: torch.device) -> ServerState:
    """All vectors of a state as tensors; counters and other small arrays stay on the host."""
    length = len(state.global_params)

    def moved(values: np.ndarray) -> Vector:
        is_vector = len(values) == length and values.dtype == np.float64
        return torch.from_numpy(values).to(device) if is_vector else values

    return replace(
        state,
        global_params=moved(state.global_params),
        accumulated=moved(state.accumulated),
        extras={name: moved(values) for name, values in state.extras.items()},
    )


def on_host(vector: Vector) -> np.ndarray:
    """A vector as a numpy array; waits for the device if it lies there."""
    return vector if isinstance(vector, np.ndarray) else vector.cpu().numpy()


def norm(vector: Vector) -> float:
    """The Euclidean norm."""
    squares = np.square(vector) if isinstance(vector, np.ndarray) else vector.square()
    return float(squares.sum()) ** 0.5


def broadcast(comm: Comm, vector: Vector) -> Vector:
    """Collective. Rank 0's vector; elsewhere a new one: nobody writes into a vector that is in use."""
    if comm.size == 1:
        return vector
    values = on_host(vector) if comm.is_root else np.empty(len(vector))
    comm.broadcast(values)
    if comm.is_root:
        return vector
    return values if isinstance(vector, np.ndarray) else torch.from_numpy(values).to(vector.device)
