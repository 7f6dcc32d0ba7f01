"""Operations on tensors of the simulated device: the CPU's kernels on aliases of their memory."""

from __future__ import annotations

import threading

import torch
from torch.utils._pytree import tree_map_only

from tests.accelerator.simulated_gpu import graphs, memory, streams
from tests.accelerator.simulated_gpu.counting import counts, operations

_lock = threading.RLock()  # autograd calls from a thread of its own
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_SET = torch.ops.aten.set_.source_Storage_storage_offset
_VIEWS = {"aten::as_strided", "aten::view", "aten::_reshape_alias", "aten::unfold"}
_ANY_DEVICE = {"aten::index", "aten::index_put_", "aten::_index_put_impl_", "aten::set_"}
_WAITS = {
    "aten::_local_scalar_dense", "aten::nonzero", "aten::equal", "aten::masked_select", "aten::_unique2",
}  # fmt: skip
# A radix sort and some twenty kernels with deterministic algorithms.
_SORTS = {
    "aten::scatter_add", "aten::scatter_add_", "aten::index_put_", "aten::_index_put_impl_",
    "aten::index_add", "aten::index_copy", "aten::index_copy_",
}  # fmt: skip
_NOT_DETERMINISTIC = {  # as torch.use_deterministic_algorithms lists them; cumsum for floats only
    "aten::avg_pool3d_backward", "aten::_adaptive_avg_pool2d_backward",
    "aten::_adaptive_avg_pool3d_backward", "aten::adaptive_max_pool2d_backward",
    "aten::fractional_max_pool2d_backward", "aten::max_unpool2d", "aten::upsample_linear1d_backward",
    "aten::upsample_bilinear2d_backward", "aten::upsample_bicubic2d_backward",
    "aten::reflection_pad1d_backward", "aten::reflection_pad2d_backward", "aten::nll_loss2d_forward",
    "aten::nll_loss2d_backward", "aten::_ctc_loss_backward", "aten::histc", "aten::put_",
    "aten::grid_sampler_2d_backward", "aten::cumsum",
}  # fmt: skip


def fallback(op: torch._ops.OpOverload, *args: object, **kwargs: object) -> object:
    """Any operation with a tensor of the device among its arguments, or that makes one."""
    name = op._schema.name
    with _lock:
        # New memory, and views, which look at sizes and strides only.
        if name in ("aten::empty", "aten::empty_strided"):
            return _empty(name, args, kwargs)
        if name in _VIEWS:
            return op.redispatch(_CPU, *args, **kwargs)

        # The rules of a device.
        given = graphs.tensors_in(args, kwargs)
        for tensor in given:
            if name not in _ANY_DEVICE and not memory.is_here(tensor) and tensor.dim() > 0:
                raise RuntimeError(
                    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 "
                    f"and {tensor.device}! ({name}, shape {tuple(tensor.shape)})"
                )
        if name in _WAITS:
            streams.wait(f"{name} waits for the device")
        if torch.are_deterministic_algorithms_enabled() and any(t.is_floating_point() for t in given):
            if name in _NOT_DETERMINISTIC:
                raise RuntimeError(
                    f"{name} does not have a deterministic implementation, but you set "
                    "'torch.use_deterministic_algorithms(True)'."
                )
            counts["sorts"] += name in _SORTS
        counts["kernels"] += 1
        operations[str(op)] += 1
        return _execute(op, args, kwargs)


def _empty(name: str, args: tuple, kwargs: dict) -> torch.Tensor:
    stride, layout = args[1] if name == "aten::empty_strided" else None, kwargs.get("memory_format")
    if layout not in (None, torch.contiguous_format, torch.preserve_format):
        stride = torch.empty(args[0], device="meta").to(memory_format=layout).stride()
    return _new(memory.allocate(args[0], kwargs.get("dtype") or torch.get_default_dtype(), stride))


def _new(tensor: torch.Tensor) -> torch.Tensor:
    streams.forget(tensor)
    if graph := graphs.recording():
        graph.own.append(tensor)
    return tensor


def _execute(op: torch._ops.OpOverload, args: tuple, kwargs: dict) -> object:
    """Run it on aliases of the arguments' memory; what is new goes to new memory."""
    aliases: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def lower(tensor: torch.Tensor) -> torch.Tensor:
        if not memory.is_here(tensor):
            return tensor
        low = memory.on_host(tensor) if tensor.numel() else torch.empty(tensor.shape, dtype=tensor.dtype)
        aliases[id(low)] = low, tensor
        return low

    low_args, low_kwargs = tree_map_only(torch.Tensor, lower, (args, kwargs))
    graph = graphs.recording()
    if graph is not None:
        graph.before(op, args, kwargs)
    result = graphs.kernel(op)(*low_args, **graphs.on_cpu(low_kwargs))

    made = []
    for low, tensor in aliases.values():  # an `out` of no size, which the kernel gave a size
        if low.numel() and not tensor.numel():
            block = _new(memory.to_device(low)).untyped_storage()
            _SET.redispatch(_CPU, tensor, block, 0, low.shape, low.stride())

    def lift(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) in aliases:
            return aliases[id(tensor)][1]
        made.append(_new(memory.to_device(tensor)))
        return made[-1]

    lifted = tree_map_only(torch.Tensor, lift, result)
    streams.touched([*graphs.tensors_in(args, kwargs), *made], [*graphs.written(op, args, kwargs), *made])
    if graph is not None:
        graph.note(op, args, kwargs, made)
    return lifted


def copy_(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Within the device a kernel; over the bus a copy, which waits unless pinned memory is used."""
    with _lock:
        if memory.is_here(target) and memory.is_here(source):
            counts["kernels"] += 1
            operations["aten.copy_"] += 1
            return _execute(torch.ops.aten.copy_.default, (target, source), {})

        # Over the bus.
        way, host = ("to_device", source) if memory.is_here(target) else ("to_host", target)
        counts[f"copies_{way}"] += 1
        counts[f"bytes_{way}"] += target.numel() * host.element_size()
        is_later = non_blocking and memory.is_pinned(host)
        if graphs.recording() is not None:
            raise RuntimeError("simulated device: a copy over the bus inside a recording is not simulated")
        if not is_later:
            streams.wait(f"copy of {tuple(target.shape)} {way}")
        streams.touched([target, source], [target])
        if way == "to_device":
            memory.on_host(target).copy_(source)
            if is_later:
                memory.leaves_later(source)
        elif is_later:
            memory.arrives_later(target, source)
        else:
            target.copy_(memory.on_host(source))
        return target


def foreach_add_(targets: list[torch.Tensor], sources: list[torch.Tensor], *, alpha: float = 1) -> None:
    """One kernel on a GPU."""
    _foreach(torch.ops.aten.add_.Tensor, targets, sources, {"alpha": alpha})


def foreach_copy_(
    targets: list[torch.Tensor], sources: list[torch.Tensor], non_blocking: bool = False
) -> None:
    """One kernel on a GPU."""
    _foreach(torch.ops.aten.copy_.default, targets, sources, {})


def _foreach(
    op: torch._ops.OpOverload, targets: list[torch.Tensor], sources: list[torch.Tensor], kwargs: dict
) -> None:
    with _lock:
        counts["kernels"] += 1
        operations[f"foreach {op}"] += 1
        for target, source in zip(targets, sources, strict=True):
            if not (memory.is_here(target) and memory.is_here(source)):
                raise RuntimeError("Expected all tensors to be on the same device (foreach)")
            _execute(op, (target, source), kwargs)
