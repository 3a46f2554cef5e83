"""Constant global batch: how the samples of a step are divided among however many ranks there are."""

from .split import Share, share_of

__all__ = ["Share", "share_of"]
