"""Memory of the simulated device: blocks of host memory that torch takes for CUDA's."""

from __future__ import annotations

import ctypes
import math
import zlib
from collections.abc import Iterable

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from tests.accelerator.simulated_gpu.counting import counts

_libc = ctypes.CDLL(None)
_libc.posix_memalign.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t]
_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_FREE = ctypes.cast(_libc.free, ctypes.c_void_p).value
_ALIGN = 512  # as CUDA's caching allocator
_CUDA = 2  # of DLPack
_TYPES = {
    torch.float64: (2, 64), torch.float32: (2, 32), torch.float16: (2, 16), torch.bfloat16: (4, 16),
    torch.int64: (0, 64), torch.int32: (0, 32), torch.int16: (0, 16), torch.int8: (0, 8),
    torch.uint8: (1, 8), torch.bool: (6, 8),
}  # fmt: skip

_blocks: list[tuple[StorageWeakRef, int]] = []
_limit = [8 << 30]
_peak = [0]


class _ManagedTensor(ctypes.Structure):
    """DLPack's record."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    )  # fmt: skip


def is_here(tensor: torch.Tensor) -> bool:
    """Whether a tensor lies on the device."""
    return tensor.device.type == "cuda"


def span(size: Iterable[int], stride: Iterable[int]) -> int:
    """Elements from the first to the last of a strided tensor."""
    size = list(size)
    return 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if math.prod(size) else 0


def allocate(size: Iterable[int], dtype: torch.dtype, stride: Iterable[int] | None = None) -> torch.Tensor:
    """A tensor on the device, full of NaN (all bits set). One block: DLPack's record, shape, strides, data.

    Its deleter is libc's free, so nothing of Python is called when the last owner goes, even at exit.
    """
    # Sizes in elements and bytes.
    size = [int(n) for n in size]
    if stride is None:
        stride = [math.prod(max(n, 1) for n in size[i + 1 :]) for i in range(len(size))]
    stride = [int(s) for s in stride]
    code, bits = _TYPES[dtype]
    num_bytes, dims = max(span(size, stride) * bits // 8, 1), max(len(size), 1)
    _make_room(num_bytes)

    # The block.
    record = ctypes.sizeof(_ManagedTensor)
    head = -(-(record + 16 * dims) // _ALIGN) * _ALIGN
    place = ctypes.c_void_p()
    if _libc.posix_memalign(ctypes.byref(place), _ALIGN, head + num_bytes):
        raise torch.OutOfMemoryError("simulated device: the host is out of memory")
    base = place.value
    ctypes.memset(base + head, 0xFF, num_bytes)
    (ctypes.c_int64 * (2 * dims)).from_address(base + record)[:] = (size or [0]) + (stride or [0])
    managed = _ManagedTensor.from_address(base)
    managed.data, managed.device_type, managed.device_id = base + head, _CUDA, 0
    managed.ndim, managed.code, managed.bits, managed.lanes = len(size), code, bits, 1
    managed.shape, managed.strides = base + record, base + record + 8 * dims
    managed.byte_offset, managed.context, managed.deleter = 0, None, _FREE
    tensor = torch._C._from_dlpack(_capsule(base, b"dltensor", None))

    counts["allocations"] += 1
    _blocks.append((StorageWeakRef(tensor.untyped_storage()), num_bytes))
    return tensor


def live_bytes() -> int:
    """Bytes of the device that somebody holds."""
    _blocks[:] = [block for block in _blocks if not block[0].expired()]
    return sum(num_bytes for _, num_bytes in _blocks)


def peak_bytes() -> int:
    """The most that was ever counted, at every thousandth allocation."""
    _peak[0] = max(_peak[0], live_bytes())
    return _peak[0]


def free_and_total() -> tuple[int, int]:
    """As cudaMemGetInfo."""
    return _limit[0] - live_bytes(), _limit[0]


def set_limit(num_bytes: int) -> None:
    """How much memory the device has."""
    _limit[0] = num_bytes


def _make_room(num_bytes: int) -> None:
    if len(_blocks) % 1000 == 0 or sum(n for _, n in _blocks[-1000:]) + num_bytes > _limit[0] // 4:
        used = live_bytes()
        _peak[0] = max(_peak[0], used + num_bytes)
        if used + num_bytes > _limit[0]:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {num_bytes} bytes; {used} of {_limit[0]} are in use"
            )


def alias(pointer: int, size: Iterable[int], stride: Iterable[int], dtype: torch.dtype) -> torch.Tensor:
    """A CPU tensor on memory of the device, for one operation: it does not keep the memory."""
    num_bytes = span(size, stride) * dtype.itemsize
    storage = torch._C._construct_storage_from_data_pointer(pointer, torch.device("cpu"), num_bytes)
    return torch.empty(0, dtype=dtype).set_(storage, 0, size, stride)


def on_host(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor on a device tensor's memory."""
    return alias(tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype)


def to_device(result: torch.Tensor) -> torch.Tensor:
    """A CPU kernel's result in memory of the device."""
    out = allocate(result.shape, result.dtype, result.stride())
    if result.numel():
        on_host(out).copy_(result)
    return out


# --- Pinned memory: copies that the host does not wait for -----------------------------------------------

_pinned: dict[int, StorageWeakRef] = {}
_arriving: list[tuple[torch.Tensor, torch.Tensor]] = []  # host tensors, and what they will hold
_leaving: list[tuple[torch.Tensor, int]] = []  # host tensors, and the checksum of what they held


def pin(tensor: torch.Tensor) -> torch.Tensor:
    """Take a host tensor for pinned."""
    storage = tensor.untyped_storage()
    _pinned[storage.data_ptr()] = StorageWeakRef(storage)
    return tensor


def is_pinned(tensor: torch.Tensor) -> bool:
    """Whether copies from and to it may run while the host goes on."""
    known = _pinned.get(tensor.untyped_storage().data_ptr())
    return known is not None and not known.expired()


def arrives_later(target: torch.Tensor, source: torch.Tensor) -> None:
    """A copy to the host: garbage until somebody waits for the device."""
    _arriving.append((target, on_host(source).clone()))
    target.copy_(torch.empty_like(target).view(torch.uint8).fill_(0xA5).view(target.dtype))


def leaves_later(source: torch.Tensor) -> None:
    """A copy from the host, which must not change until somebody waits for the device."""
    _leaving.append((source, _checksum(source)))


def settle() -> None:
    """The host waits for the device: all copies are complete."""
    for target, value in _arriving:
        target.copy_(value)
    leaving = _leaving[:]
    _arriving.clear()
    _leaving.clear()
    for source, before in leaving:
        if _checksum(source) != before:
            raise RuntimeError(
                "simulated device: pinned memory changed while a copy from it could still run"
            )


def _checksum(tensor: torch.Tensor) -> int:
    return zlib.crc32(tensor.contiguous().view(torch.uint8).numpy().tobytes())
