"""What is trained: models (builtin.py), as one flat vector (flat.py), and their gradients (engines/)."""

from fedmpi.models.builtin import MODELS, build_model, may_be_random, model, sample_losses

__all__ = ["MODELS", "build_model", "may_be_random", "model", "sample_losses"]
