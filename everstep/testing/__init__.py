"""Fault injection for training scripts: die, raise, hang, lag or corrupt at a rank, step and phase. Standard library only."""

from .faults import PHASES, Fault, Fired, Injected, InjectedFault, arm, at, disarm, inject, point

__all__ = ["PHASES", "Fault", "Fired", "Injected", "InjectedFault", "arm", "at", "disarm", "inject", "point"]
