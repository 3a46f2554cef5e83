"""Recovery in place: the process, the model and the optimizer stay; the process group around them is replaced.

Importing this package imports torch, and checks that torch has the private parts on which it relies.
"""

from . import torch_parts

torch_parts.check()

from everstep.checkpoint.checkpointer import Checkpointer  # noqa: E402, the check must come before torch's parts are used

from .anomaly import LossPolicy  # noqa: E402
from .drive import init, resilient  # noqa: E402
from .run import Run  # noqa: E402
from .state import State  # noqa: E402
from .update import Update  # noqa: E402

__all__ = ["Checkpointer", "LossPolicy", "Run", "State", "Update", "init", "resilient"]
