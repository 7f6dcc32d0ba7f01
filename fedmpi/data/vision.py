"""torchvision, imported where it is needed only: that takes seconds, and fails beside some torches."""

from __future__ import annotations

from types import ModuleType

from fedmpi.errors import UserError

_kept: list[object] = []  # operators that are declared are gone with the library that declares them


def import_torchvision(wanted_for: str) -> ModuleType:
    """The package; a UserError that says what it is needed for, where it cannot be imported."""
    import torch

    # It needs these two operators at import; CPU-only builds of torch may lack them.
    if not hasattr(torch.ops.torchvision, "nms"):
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _kept.append(library)
    try:
        import torchvision
    except (ImportError, RuntimeError, AttributeError) as error:
        raise UserError(
            f"{wanted_for}: needs the package torchvision, which cannot be loaded here ({error}); "
            "pip install torchvision of the version that fits torch"
        ) from None
    return torchvision
