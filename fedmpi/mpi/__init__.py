"""The machine: MPI (comm.py, world.py, launcher.py), devices and which rank computes where.

Importing this package starts nothing and loads neither mpi4py nor torch.
"""

from fedmpi.mpi.comm import Comm
from fedmpi.mpi.world import attached, launched_rank, launched_size, session

__all__ = ["Comm", "attached", "launched_rank", "launched_size", "session"]
