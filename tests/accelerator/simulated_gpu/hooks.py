"""Making torch believe in the simulated device.

torch's own guard for devices written in Python is put into c10's table of guards at CUDA's place; the CUDA
hooks say "built, available"; `torch.library` gives the CUDA key a fallback written in Python.
"""

from __future__ import annotations

import ctypes
import os
import re
import types
from pathlib import Path

import torch

from tests.accelerator.simulated_gpu import dispatch, graphs, memory, streams

_keep: list = []  # registrations live as long as the process


def install() -> torch.device:
    """From now on there is a device cuda:0 in this process."""
    if not _keep:
        if torch.backends.cuda.is_built():
            raise RuntimeError("simulated device: needs a torch without CUDA")
        _keep.extend(_claim_cuda())
        _patch_torch_cuda()
        everything, aten = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
        everything.fallback(dispatch.fallback, "CUDA")
        aten.impl("copy_", dispatch.copy_, "CUDA")
        aten.impl("_foreach_add_.List", dispatch.foreach_add_, "CUDA")
        aten.impl("_foreach_copy_", dispatch.foreach_copy_, "CUDA")
        for name in ("convolution", "convolution_backward"):  # else they look for cuDNN
            op = getattr(torch.ops.aten, name).default
            aten.impl(name, lambda *args, _op=op, **kwargs: dispatch.fallback(_op, *args, **kwargs), "CUDA")
        _keep.extend([everything, aten])
    return torch.device("cuda", 0)


def _claim_cuda() -> list:
    """Make torch's core believe in a CUDA device: autograd asks the guard and the hooks."""
    folder = Path(torch.__file__).parent

    class Guard(torch._C._acc.DeviceGuard):
        def type_(self) -> object:
            return torch._C._autograd.DeviceType.CUDA

    guard, private_use, cuda = Guard(), 20, 1  # numbers of c10::DeviceType
    torch._C._acc.register_python_privateuseone_device_guard(guard)
    c10 = ctypes.CDLL(str(folder / "lib" / "libc10.so"))
    guards = (ctypes.c_void_p * (private_use + 1)).in_dll(c10, "_ZN3c104impl26device_guard_impl_registryE")
    guards[cuda], guards[private_use] = guards[private_use], None

    # The hooks get a copy of their table of virtual functions with three replaced.
    get_hooks = ctypes.CDLL(str(folder / "lib" / "libtorch_cpu.so"))._ZN2at6detail12getCUDAHooksEv
    get_hooks.restype = ctypes.c_void_p
    header = (folder / "include/ATen/detail/AcceleratorHooksInterface.h").read_text()
    virtual = re.findall(r"^  virtual [^(]*?(~?\w+)\(", header, re.MULTILINE)
    table = ctypes.c_void_p.from_address(get_hooks())
    copy = ctypes.create_string_buffer(ctypes.string_at(table.value - 16, 640), 640)
    entries = (ctypes.c_void_p * 80).from_buffer(copy)
    yes = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)(lambda hooks: True)
    for name in ("isBuilt", "isAvailable", "hasPrimaryContext"):
        # After two words of the table itself; the destructor, which comes first, has two entries.
        entries[2 + virtual.index(name) + 1] = ctypes.cast(yes, ctypes.c_void_p).value
    table.value = ctypes.addressof(copy) + 16
    return [guard, copy, yes]


def _patch_torch_cuda() -> None:
    cuda = torch.cuda
    cuda._lazy_init = lambda: None
    cuda.is_available = cuda.is_initialized = lambda: True
    cuda.device_count, cuda.current_device = _visible_gpus, (lambda: 0)
    cuda.set_device = cuda.manual_seed = cuda.manual_seed_all = lambda value: None
    cuda.get_device_name = lambda device=None: "simulated GPU"
    cuda.get_device_properties = lambda device=None: types.SimpleNamespace(
        name="simulated GPU", uuid="51371a7e-0000", total_memory=memory.free_and_total()[1]
    )
    cuda.mem_get_info = lambda device=None: memory.free_and_total()
    cuda.memory_reserved = cuda.memory_allocated = lambda device=None: memory.live_bytes()
    cuda.max_memory_allocated = lambda device=None: memory.peak_bytes()
    cuda.synchronize = lambda device=None: streams.wait("synchronize")
    cuda.Stream, cuda.Event = streams.Stream, streams.Event
    cuda.CUDAGraph, cuda.graph = graphs.CUDAGraph, graphs.Capturing
    cuda.stream, cuda.current_stream = streams.on, lambda device=None: streams.current()
    cuda.graph_pool_handle = lambda: (0, 0)
    plain = torch.empty

    def empty(*args: object, pin_memory: bool = False, **kwargs: object) -> torch.Tensor:
        tensor = plain(*args, **kwargs)
        return memory.pin(tensor) if pin_memory else tensor

    torch.empty = empty


def _visible_gpus() -> int:
    """As many as the launcher shows; autograd knows cuda:0 only."""
    shown = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    return len([name for name in shown.split(",") if name])
