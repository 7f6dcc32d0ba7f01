"""Sends the samples of lent clients from owner to trainer, while both train their own clients.

Invariant: a client's raw samples for the steps of one round are sent; the trainer makes exactly the same
minibatches from them as the owner would have made.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from fedmpi.data.ownership import owner_of
from fedmpi.data.shard import ClientData
from fedmpi.mpi import Comm
from fedmpi.mpi.pinned import host_bytes


class Loans:
    """The loans of one wave of clients, from `start` to `finish`."""

    def __init__(self, comm: Comm, data: ClientData) -> None:
        self._comm = comm
        self._data = data
        self._sending: list[tuple[object, Tensor]] = []  # requests, and the bytes they send
        self._arriving: dict[int, tuple[object, Tensor]] = {}

    def start(
        self,
        clients: np.ndarray,
        trainers: np.ndarray,
        drawn: np.ndarray,
        steps: np.ndarray,
        first_tag: int = 0,
    ) -> None:
        """Start sending samples of lent clients, and receiving those of borrowed clients.

        `drawn`: minibatches so far, of all N clients; `steps`: minibatches in this round, of these.
        """
        owners = owner_of(clients, self._comm.size)
        device, drawn_here = self._data.inputs.device, []
        for place in np.flatnonzero(owners != trainers).tolist():
            client, owner, trainer = int(clients[place]), int(owners[place]), int(trainers[place])
            tag, count = first_tag + place, int(steps[place])
            # Borrowed: receive.
            if trainer == self._comm.rank:
                buffer = host_bytes(self._num_bytes(client, count), device)
                self._arriving[client] = (self._comm.receive_later(buffer.numpy(), owner, tag), buffer)
            # Lent: draw the samples here.
            elif owner == self._comm.rank:
                inputs, labels = self._data.draw(client, int(drawn[client]), count)
                drawn_here.append((trainer, tag, self._to_host(inputs, labels)))

        # Send them, once they are all in host memory.
        if drawn_here and device.type == "cuda":
            torch.cuda.current_stream().synchronize()
        for trainer, tag, buffer in drawn_here:
            self._sending.append((self._comm.send_later(buffer.numpy(), trainer, tag), buffer))

    def _to_host(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """A message: the labels, then the inputs. On a GPU the copy may still be running."""
        parts = [part.contiguous().view(torch.uint8).reshape(-1) for part in (labels, inputs)]
        first = _whole_words(len(parts[0]))
        buffer = host_bytes(first + len(parts[1]), inputs.device)
        buffer[: len(parts[0])].copy_(parts[0], non_blocking=True)
        buffer[first:].copy_(parts[1], non_blocking=True)
        return buffer

    def receive(self, client: int, count: int) -> tuple[Tensor, Tensor]:
        """The samples of a borrowed client, on this rank's device."""
        request, buffer = self._arriving.pop(client)
        self._comm.complete(request)

        # A client without samples sends nothing.
        rows, owned, known = self._data.num_drawn(client, count), self._data.inputs, self._data.labels
        if rows == 0:
            return owned[:0], known[:0]

        # The message holds the labels, then the inputs.
        end = rows * _sample_bytes(known)
        labels = buffer[:end].view(known.dtype).view(rows, *known.shape[1:])
        inputs = buffer[_whole_words(end) :].view(owned.dtype).view(rows, *owned.shape[1:])
        return tuple(part.to(owned.device, non_blocking=True) for part in (inputs, labels))

    def keep_moving(self) -> None:
        """Let MPI make progress on large messages, which move only during calls into MPI."""
        for request, _ in self._sending:
            request.Test()

    def finish(self) -> None:
        """Wait until all samples are sent."""
        for request, _ in self._sending:
            self._comm.complete(request)
        self._sending.clear()

    def _num_bytes(self, client: int, count: int) -> int:
        rows = self._data.num_drawn(client, count)
        return _whole_words(rows * _sample_bytes(self._data.labels)) + rows * _sample_bytes(
            self._data.inputs
        )


def _sample_bytes(samples: Tensor) -> int:
    """Of one of them."""
    return int(np.prod(samples.shape[1:], dtype=int)) * samples.element_size()


def _whole_words(length: int) -> int:
    """So many bytes and what is missing to a multiple of 8, at which numbers of any type may begin.

    >>> _whole_words(16), _whole_words(17)
    (16, 24)
    """
    return -(-length // 8) * 8
