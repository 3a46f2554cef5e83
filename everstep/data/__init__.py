"""Data order: which sample comes when is a pure function of the seed and of how many samples were consumed."""

from .order import DataOrder
from .sampler import OrderedBatches

__all__ = ["DataOrder", "OrderedBatches"]
