"""A GPU that is not there: torch's "cuda:0" on a CPU-only build of torch, for tests.

Tensors of the simulated device are genuine torch tensors, no subclass: their device is cuda:0, their
dispatch key CUDA, their storage a block of host memory of its own. Operations run on CPU kernels through a
fallback of the CUDA key, so what a program computes is, bit for bit, what the CPU computes. Added are the
rules of a device:

- an operation on tensors of both devices raises; memory that nobody wrote holds NaN;
- kernels, copies over the bus with their bytes, and waits for the device are counted;
- a copy to pinned memory that nobody waited for holds garbage; pinned memory that changes while a copy from
  it may still run is an error;
- CUDA graphs are recorded and replayed on the recorded addresses: while recording nothing may wait,
  recorded work leaves no trace, a replay on memory freed since raises, and so do streams that were not
  forked from and joined to the recording, or that touch the same memory without waiting for each other;
- with deterministic algorithms, what has no deterministic CUDA kernel raises as CUDA would;
- memory is limited: beyond `limit` bytes torch.OutOfMemoryError is raised.

Not seen: speed, rounding of CUDA's own kernels, cuDNN, drivers. Registrations are for the whole process:
use a process of its own. Written for torch 2.13 (CPU) on Linux x86-64.
"""

from tests.accelerator.simulated_gpu.counting import counts, operations, reset
from tests.accelerator.simulated_gpu.hooks import install
from tests.accelerator.simulated_gpu.memory import live_bytes, set_limit

__all__ = ["counts", "install", "live_bytes", "operations", "reset", "set_limit"]
