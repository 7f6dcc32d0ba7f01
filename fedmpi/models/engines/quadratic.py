"""Gradients of the quadratic model by hand: x - z; autograd takes ten times as long for two parameters."""

from __future__ import annotations

from torch import Tensor

from fedmpi.models.engines.autograd import Adder, Scale
from fedmpi.models.flat import FlatModel, aligned_rows, together
from fedmpi.models.losses import Quadratic


def is_quadratic(model: FlatModel) -> bool:
    """Whether the model is F(x; z) = |x - z|^2 / 2, as it is."""
    return type(model.module) is Quadratic and model.trainable == [0]


class ByHand:
    """Gradients of a group of clients, by autograd's operations in its order: the bits are the same."""

    by_inference = False
    takes_rates = False
    sets_first = False

    def __init__(self, model: FlatModel) -> None:
        self.group_size = together(16, model.num_params)
        self._local_params = aligned_rows(self.group_size, model.num_params, model.values)

    def local_params(self, count: int) -> Tensor:
        """A stack separate from the model."""
        return self._local_params[:count]

    def memory(self) -> object:
        """The parameters."""
        return self._local_params

    def adder(self, target: Tensor) -> Adder:
        """Adds scale * gradient to `target`, for all rows at once."""
        at, rows = self._local_params[: len(target)].unsqueeze(1), target.unsqueeze(1)

        def add(centers: Tensor, labels: Tensor, scale: Scale) -> None:
            batch, gradient = centers.shape[1], at - centers
            if batch > 1:
                gradient = gradient.mul_(2).mul_(0.5 / batch).sum(dim=1, keepdim=True)
            if isinstance(scale, Tensor):
                rows.addcmul_(gradient, scale.to(target.dtype).unsqueeze(2))
            else:
                rows.add_(gradient, alpha=scale)

        return add
