"""CUDA graphs of the simulated device: operations recorded with their addresses, and done again."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_map_only

from tests.accelerator.simulated_gpu import memory, streams
from tests.accelerator.simulated_gpu.counting import counts

_recording: list[CUDAGraph] = []


def recording() -> CUDAGraph | None:
    """The graph that is being recorded."""
    return _recording[-1] if _recording else None


def tensors_in(*trees: object) -> list[torch.Tensor]:
    """All tensors of nested arguments."""
    found: list[torch.Tensor] = []
    tree_map_only(torch.Tensor, found.append, trees)
    return found


def on_cpu(kwargs: dict) -> dict:
    """Arguments of an operation, to be done on the CPU."""
    return {k: torch.device("cpu") if isinstance(v, torch.device) else v for k, v in kwargs.items()}


def kernel(op: torch._ops.OpOverload) -> Callable:
    """What computes an operation: the CPU's kernel, unless CUDA's is known to round differently."""
    return _correct_sqrt if op._schema.name == "aten::sqrt" else op


def _correct_sqrt(values: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """Correctly rounded, as on a GPU; that of torch's CPU build is not."""
    result = torch.from_numpy(np.sqrt(values.numpy()))
    return result if out is None else out.resize_(values.shape).copy_(result)


def written(op: torch._ops.OpOverload, args: tuple, kwargs: dict) -> list[torch.Tensor]:
    """The arguments that an operation changes."""
    positional = [a.name for a in op._schema.arguments if not a.kwarg_only]
    given = dict(zip(positional, args, strict=False)) | kwargs
    names = [a.name for a in op._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return tensors_in([given.get(name) for name in names])


class _Place:
    """Where a tensor of a recording lies. The memory itself is not kept: neither does CUDA."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.pointer, self.size, self.stride = tensor.data_ptr(), tuple(tensor.shape), tensor.stride()
        self.dtype, self.storage = tensor.dtype, StorageWeakRef(tensor.untyped_storage())

    def alias(self) -> torch.Tensor:
        """The memory now."""
        if self.storage.expired():
            raise RuntimeError(
                "simulated device: a CUDA graph works on memory that was freed since: "
                f"{self.size} {self.dtype}"
            )
        return memory.alias(self.pointer, self.size, self.stride, self.dtype)


class CUDAGraph:
    """torch.cuda.CUDAGraph"""

    def __init__(self, *args: object, **kwargs: object) -> None:
        self.calls: list[tuple] = []
        self.own: list[torch.Tensor] = []  # allocated while recording
        self._saved: dict[int, bytes] = {}
        self._stream: streams.Stream | None = None

    def before(self, op: torch._ops.OpOverload, args: tuple, kwargs: dict) -> None:
        """While recording nothing is executed: memory that is changed here is put back at the end."""
        if not self._is_forked(streams.current()):
            raise RuntimeError(
                "simulated device: work on a stream that does not belong to the recording; fork it with "
                "wait_stream"
            )
        for tensor in written(op, args, kwargs):
            block = tensor.untyped_storage()
            if memory.is_here(tensor) and block.data_ptr() not in self._saved:
                self._saved[block.data_ptr()] = ctypes.string_at(block.data_ptr(), block.nbytes())

    def _is_forked(self, stream: streams.Stream) -> bool:
        return stream is self._stream or stream.knows.get(self._stream.number, -1) >= self._began

    def note(self, op: torch._ops.OpOverload, args: tuple, kwargs: dict, made: list[torch.Tensor]) -> None:
        """One more kernel."""
        self._last[streams.current().number] = streams.current().done
        places = tree_map_only(
            torch.Tensor, lambda t: _Place(t) if memory.is_here(t) else t, (args, kwargs)
        )
        self.calls.append((op, *places, [_Place(tensor) for tensor in made]))

    def begin(self, stream: streams.Stream) -> None:
        """Record what is done from now on."""
        counts["recordings"] += 1
        stream.done += 1
        self._stream, self._began = stream, stream.done
        self._last: dict[int, int] = {}  # the last kernel of each stream
        _recording.append(self)

    def end(self) -> None:
        """Put back what recording itself changed; all streams must have come back."""
        _recording.pop()
        for pointer, before in self._saved.items():
            ctypes.memmove(pointer, before, len(before))
        self._saved.clear()
        for number, done in self._last.items():
            if number != self._stream.number and self._stream.knows.get(number, 0) < done:
                raise RuntimeError("CUDA error: capturing stream has unjoined work")

    def replay(self) -> None:
        """Do it again."""
        counts["graph_launches"] += 1
        counts["graph_kernels"] += len(self.calls)
        for op, args, kwargs, made in self.calls:
            args, kwargs = tree_map_only(_Place, _Place.alias, (args, on_cpu(kwargs)))
            given, results = tensors_in(args, kwargs), tensors_in(kernel(op)(*args, **kwargs))
            fresh = [r for r in results if not any(r is tensor for tensor in given)]
            if len(made) != len(fresh):
                raise RuntimeError(f"simulated device: {op} cannot be replayed")
            for place, result in zip(made, fresh, strict=True):
                place.alias().copy_(result)

    def reset(self) -> None:
        """Forget it all."""
        self.calls.clear()
        self.own.clear()


class Capturing:
    """torch.cuda.graph"""

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: object = None,
        stream: streams.Stream | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        self._graph = cuda_graph
        self._stream = stream or streams.Stream()
        self._on = streams.on(self._stream)

    def __enter__(self) -> None:
        streams.all_done()
        self._stream.wait_stream(streams.current())
        self._on.__enter__()
        self._graph.begin(self._stream)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._on.__exit__(None, None, None)
        streams.all_done()
        try:
            self._graph.end()
        except RuntimeError:
            if error is None:
                raise
