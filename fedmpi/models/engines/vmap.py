"""Many clients at once by torch.func.vmap: any model whose operations can be stacked."""

from __future__ import annotations

import torch
from torch import Tensor

from fedmpi.models.engines.autograd import Adder, Scale
from fedmpi.models.flat import FlatModel, aligned_rows, together


class Vectorised:
    """Gradients of a group of clients, their parameters stacked; a smaller group is padded."""

    by_inference = False
    takes_rates = False
    sets_first = False

    def __init__(self, model: FlatModel) -> None:
        self._model = model
        self.group_size = together(8, model.num_params)
        self._local_params = aligned_rows(self.group_size, model.num_params, model.values)

        def loss(parameters: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
            outputs = torch.func.functional_call(model.module, parameters, (inputs,))
            return model.task.losses(outputs, labels).mean()

        self._gradients = torch.func.vmap(torch.func.grad(loss))

    def local_params(self, count: int) -> Tensor:
        """A stack separate from the model."""
        return self._local_params[:count]

    def memory(self) -> object:
        """The parameters."""
        return self._local_params

    def adder(self, target: Tensor) -> Adder:
        """Adds scale * gradient to `target`, for all rows at once."""
        # The parameters of a whole group, and the targets of the clients in it.
        names, trained = self._model.names, self._model.trainable
        parameters = dict(zip(names, self._model.stacked_views(self._local_params), strict=True))
        views = self._model.stacked_views(target)
        parts, count = [views[i] for i in trained], len(target)

        def add(inputs: Tensor, labels: Tensor, scale: Scale) -> None:
            gradients = self._gradients(parameters, self._filled(inputs), self._filled(labels))
            values = [gradients[names[i]][:count] for i in trained]
            if isinstance(scale, Tensor):
                for part, value in zip(parts, values, strict=True):
                    part.addcmul_(value, scale.to(part.dtype).view(-1, *[1] * (value.dim() - 1)))
            else:
                torch._foreach_add_(parts, values, alpha=scale)

        return add

    def _filled(self, rows: Tensor) -> Tensor:
        """Pad to a whole group: kernels may give different bits for a different number of rows."""
        missing = self.group_size - len(rows)
        return torch.cat([rows, rows[:1].expand(missing, *rows.shape[1:])]) if missing else rows
