"""What is trained: models by name, as one vector (flat.py), and their gradients (engines/).

Importing this package does not load torch.
"""

from fedmpi.models.builtin import MODELS, build_model, may_be_random, model

from fedmpi.models import architectures  # isort: skip # noqa: F401 (they register themselves)

__all__ = ["MODELS", "build_model", "may_be_random", "model"]
