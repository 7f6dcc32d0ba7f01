"""A faster equivalent of a convolutional model on CPU: memory layouts, layer order; tested on the model.

Two changes, made on the traced graph of any module:
- max-pooling before ReLU instead of after it: both are monotone, so function and gradient are the same,
  and ReLU has a quarter of the work;
- convolutions with few input channels, and pooling, with channels last in memory; other convolutions in
  plain layout, which oneDNN blocks inside. Each was measured to be the faster one.

Invariant: the changed model is used only if its outputs and gradients agree with the original's.
"""

from __future__ import annotations

import torch
from torch import Tensor, fx, nn

from fedmpi.models.flat import FlatModel
from fedmpi.models.losses import sample_losses

_FEW_CHANNELS = 16
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
    return f"{swapped} ReLU after max-pool, {moved} convolutions with chosen layout (tested to be equal)"


def to_channels_last(images: Tensor) -> Tensor:
    """The same images, laid out with channels last in memory."""
    if images.shape[1] == 1:  # both layouts are the same bytes; the strides tell the kernels
        height, width = images.shape[2:]
        return images.contiguous().as_strided(images.shape, (height * width, 1, width, 1))
    return images.contiguous(memory_format=torch.channels_last)


def to_plain(images: Tensor) -> Tensor:
    """The same images, channel by channel in memory."""
    return images.contiguous()


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
    """Convert images before and after convolutions; returns how many."""
    moved = 0
    for node in list(graph.nodes):
        if not _is(module, node, nn.Conv2d, ()):
            continue

        # Convert its input.
        conv = module.get_submodule(node.target)
        few = conv.in_channels < _FEW_CHANNELS
        with graph.inserting_before(node):
            image = graph.call_function(to_channels_last if few else to_plain, (node.args[0],))
        node.args = (image, *node.args[1:])

        # Pooling after it wants channels last.
        if not few:
            users = list(node.users)
            with graph.inserting_after(node):
                result = graph.call_function(to_channels_last, (node,))
            for user in users:
                user.replace_input_with(node, result)
        moved += 1
    return moved


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
    labels = torch.zeros(4, dtype=torch.int64)
    answers = []
    with torch.random.fork_rng(devices=[]):
        for forward in (model.module, faster):
            torch.manual_seed(1)
            forward.train(training)
            try:
                outputs = forward(images)
                losses = sample_losses(outputs, labels).mean()
                gradient = model.gradient(losses)
            except Exception:
                return False
            answers.append([outputs, *gradient])

    return all(
        a.shape == b.shape and bool((a - b).norm() <= 1e-4 * a.norm())
        for a, b in zip(*answers, strict=True)
    )
