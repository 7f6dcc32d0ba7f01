"""A faster equivalent of a convolutional model on CPU: memory layouts, layer order; tested on the model.

Changes, made on the traced graph of any module:
- max-pooling before ReLU instead of after it: both are monotone, so function and gradient are the same,
  and ReLU has a quarter of the work; where no gradient is asked for, as the maximum of rows and columns;
- convolutions, and what comes between them, with channels last in memory, which was measured to be faster
  than the plain layout, forward and backward.

Invariant: the changed model is used only if its outputs and gradients agree with the original's.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, fx, nn

from fedmpi.models.flat import FlatModel

_RELUS = (nn.functional.relu, torch.relu, torch.relu_, "relu", "relu_")
_POOLS = (nn.functional.max_pool2d, torch.max_pool2d)


def speed_up(model: FlatModel, shape: tuple[int, ...], *, is_known: bool = False) -> str:
    """Put a faster equivalent of the model's module in `model.forward`; returns what was done, in words.

    `is_known`: the same was done, and found to be equal, for a model of the same kind.
    """
    if model.values.device.type != "cpu" or model.values.dtype != torch.float32 or len(shape) != 3:
        return ""

    # Trace the model and change the graph.
    try:
        graph = fx.Tracer().trace(model.module)
    except Exception:  # control flow that depends on data, for example
        return ""
    swapped, moved = _pool_before_relu(model.module, graph), _choose_layouts(model.module, graph)
    if not swapped + moved:
        return ""

    # Use it only if it computes the same.
    graph.lint()
    faster = fx.GraphModule(model.module, graph)
    if not is_known and not _are_equal(model, faster, shape):
        return ""
    model.forward = faster
    return f"{swapped} ReLU after max-pool, {moved} convolutions with channels last (tested to be equal)"


def to_channels_last(images: Tensor) -> Tensor:
    """The same images, laid out with channels last in memory."""
    if images.shape[1] == 1:  # both layouts are the same bytes; the strides tell the kernels
        height, width = images.shape[2:]
        return images.contiguous().as_strided(images.shape, (height * width, 1, width, 1))
    return images.contiguous(memory_format=torch.channels_last)


def max_pool(images: Tensor, size: int) -> Tensor:
    """Max-pooling of squares side by side; of the rest at the edges nothing."""
    if torch.is_grad_enabled():
        return nn.functional.max_pool2d(images, size)

    # Rows, then columns, channels together: half of the time of max_pool2d, which looks for indices too.
    height, width = (length // size * size for length in images.shape[2:])
    by_row = images.permute(0, 2, 3, 1)
    rows = _maximum([by_row[:, first:height:size] for first in range(size)])
    return _maximum([rows[:, :, first:width:size] for first in range(size)]).permute(0, 3, 1, 2)


def _maximum(parts: list[Tensor]) -> Tensor:
    return functools.reduce(torch.maximum, parts)


def _pool_before_relu(module: nn.Module, graph: fx.Graph) -> int:
    """relu -> max_pool becomes max_pool -> relu; returns how many."""
    swapped = 0
    for pool in list(graph.nodes):
        if not _is(module, pool, nn.MaxPool2d, _POOLS) or not isinstance(pool.args[0], fx.Node):
            continue

        # Only a ReLU that feeds nothing else.
        relu = pool.args[0]
        if not _is(module, relu, nn.ReLU, _RELUS) or len(relu.users) > 1:
            continue

        # Swap the two in the graph.
        pool.replace_all_uses_with(relu)
        pool.replace_input_with(relu, relu.args[0])
        relu.replace_input_with(relu.args[0], pool)
        pool.append(relu)
        swapped += 1
    return swapped


def _choose_layouts(module: nn.Module, graph: fx.Graph) -> int:
    """Convert images before convolutions, and pool as that layout allows; returns how many convolutions."""
    moved = 0
    for node in list(graph.nodes):
        if _is(module, node, nn.Conv2d, ()):
            with graph.inserting_before(node):
                image = graph.call_function(to_channels_last, (node.args[0],))
            node.args = (image, *node.args[1:])
            moved += 1
    for node in list(graph.nodes) if moved else ():
        if size := _square(module, node):
            with graph.inserting_after(node):
                pooled = graph.call_function(max_pool, (node.args[0], size))
            node.replace_all_uses_with(pooled)
            graph.erase_node(node)
    return moved


def _square(module: nn.Module, node: fx.Node) -> int:
    """The size of the squares of max-pooling over squares side by side; 0 for any other node."""
    if node.op == "call_function" and node.target in _POOLS and len(node.args) == 2 and not node.kwargs:
        size = _pair(node.args[1])
        return size[0] if size == (size[0], size[0]) else 0
    if node.op != "call_module" or not _is(module, node, nn.MaxPool2d, ()):
        return 0
    pool = module.get_submodule(node.target)
    size, stride = _pair(pool.kernel_size), _pair(pool.stride)
    is_usual = _pair(pool.padding) == (0, 0) and _pair(pool.dilation) == (1, 1)
    is_usual = is_usual and not pool.ceil_mode and not pool.return_indices
    return size[0] if is_usual and size == stride == (size[0], size[0]) else 0


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else tuple(value)


def _is(module: nn.Module, node: fx.Node, kind: type[nn.Module], functions: tuple) -> bool:
    if node.op == "call_module":
        return type(module.get_submodule(node.target)) is kind
    return node.op in ("call_function", "call_method") and node.target in functions


def _are_equal(model: FlatModel, faster: nn.Module, shape: tuple[int, ...]) -> bool:
    """Whether the two agree in training and in evaluation.

    A graph is traced in one mode: `dropout(x, training=self.training)` in it would always drop out.
    """
    modes = [_agree(model, faster, shape, training) for training in (False, True)]
    return all(modes)


def _agree(model: FlatModel, faster: nn.Module, shape: tuple[int, ...], training: bool) -> bool:
    """Outputs and gradients agree on random images to 1e-4 of their size, with the same random numbers."""
    # Outputs and gradients of both, from the same seed.
    images = torch.randn((4, *shape), generator=torch.Generator().manual_seed(1))
    answers = []
    with torch.random.fork_rng(devices=[]):
        for forward in (model.module, faster):
            torch.manual_seed(1)
            forward.train(training)
            try:
                outputs = forward(images)
                gradient = model.gradient(outputs.square().mean())
                with torch.no_grad():  # as an evaluation has it
                    evaluated = forward(images)
            except Exception:
                return False
            answers.append([outputs, evaluated, *gradient])

    return all(
        a.shape == b.shape and bool((a - b).norm() <= 1e-4 * a.norm())
        for a, b in zip(*answers, strict=True)
    )
