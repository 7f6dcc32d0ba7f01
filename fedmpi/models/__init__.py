"""What is trained: models (builtin.py, losses.py), as one vector (flat.py), their gradients (engines/).

Importing this package does not load torch.
"""

from fedmpi.models.builtin import MODELS, build_model, may_be_random, model

__all__ = ["MODELS", "build_model", "may_be_random", "model"]
