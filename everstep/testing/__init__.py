"""Fault injection for training scripts: die, or raise, at a drawn rank, step and phase. Standard library only."""

from .faults import PHASES, Fault, InjectedFault, arm, point

__all__ = ["PHASES", "Fault", "InjectedFault", "arm", "point"]
