"""Hugging Face's ``Trainer``, and what is made of it (TRL), with checkpoints in the tiers.

    class MyTrainer(TieredTrainerMixin, Trainer): ...
    MyTrainer(..., args=TrainingArguments(..., save_strategy="no")).train(resume_from_checkpoint=True)

Model, optimizer and scheduler, the generators of each rank and the trainer's own state are saved when the ``Checkpointer`` says so, instead of by
``save_steps`` to disk, or beside it. ``resume_from_checkpoint=True`` goes on from the newest complete step that every rank can read, else from what
lies in ``output_dir``, else begins; a path is Transformers' own affair. The Trainer itself skips the samples that it has seen, which is exact as long as the world size is the same.

Transformers reads a folder when it resumes. It is given one that holds the trainer's state and nothing else; the rest is filled in where it is.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

from everstep.errors import CheckpointUnreadable

from . import direct, generators
from .checkpointer import Checkpointer

if TYPE_CHECKING:
    from torch.optim import Optimizer

_log = logging.getLogger("everstep.checkpoint")
_STATE_FILE = "trainer_state.json"
_TRAINER = "trainer"


class TieredTrainerMixin:
    """Stands before ``Trainer`` in the list of bases. ``checkpointer`` may be set before ``train``; its default chooses the intervals itself."""

    checkpointer: Checkpointer | None = None

    if TYPE_CHECKING:
        args: Any
        state: Any
        model: torch.nn.Module
        model_wrapped: torch.nn.Module
        optimizer: Optimizer
        lr_scheduler: Any
        control: Any
        callback_handler: Any

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **options: Any) -> Any:
        saves = self._saves()
        self._resumed: _Resumed | None = None
        self._saved_at = -1
        try:
            if resume_from_checkpoint is not True:
                return self._train(resume_from_checkpoint, *args, **options)
            if (found := saves.newest()) is None:
                has_folder = any(Path(self.args.output_dir).glob("checkpoint-*"))
                return self._train(has_folder or None, *args, **options)
            with tempfile.TemporaryDirectory(prefix="everstep-resume-") as folder:
                self._resumed = _Resumed(Path(folder), *found)
                self._resumed.write_state(saves)
                return self._train(folder, *args, **options)
        finally:
            saves.close()

    # ------------------------------------------------------------ what the Trainer calls

    def _maybe_log_save_evaluate(self, *args: Any, **options: Any) -> None:
        super()._maybe_log_save_evaluate(*args, **options)  # type: ignore[misc]
        step = self.state.global_step
        if step != self._saved_at:  # it is called once more at the end of an epoch
            self._saved_at = step
            self._saves().step(self._whole_state, step, optimizer=_innermost(self.optimizer), is_last=step >= self.state.max_steps)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: torch.nn.Module | None = None) -> None:
        """The model is filled together with the optimizer, once that is there."""
        if not self._is_ours(resume_from_checkpoint):
            super()._load_from_checkpoint(resume_from_checkpoint, model)  # type: ignore[misc]

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        resumed = self._resumed
        if resumed is None or not self._is_ours(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)  # type: ignore[misc]
            return
        whole = self._tensors()
        whole["scheduler"] = self.lr_scheduler.state_dict()
        resumed.fill(self._saves(), whole)
        model, optimizer = self.model_wrapped, _innermost(self.optimizer)
        set_state_dict(model, optimizer, model_state_dict=whole["model"], optim_state_dict=whole["optimizer"])
        self.lr_scheduler.load_state_dict(whole["scheduler"])

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if self._resumed is not None and self._is_ours(checkpoint):
            self._resumed.restore_generators()
        else:
            super()._load_rng_state(checkpoint)  # type: ignore[misc]

    # ------------------------------------------------------------ inside

    def _saves(self) -> Checkpointer:
        if self.checkpointer is None:
            self.checkpointer = Checkpointer()
        return self.checkpointer

    def _is_ours(self, checkpoint: str | None) -> bool:
        return self._resumed is not None and checkpoint is not None and Path(checkpoint) == self._resumed.folder

    def _train(self, *args: Any, **options: Any) -> Any:
        return super().train(*args, **options)  # type: ignore[misc]

    def _tensors(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model_wrapped, _innermost(self.optimizer))
        return {"model": model, "optimizer": optimizer}

    def _whole_state(self) -> dict[str, Any]:
        return {**self._tensors(), "scheduler": self.lr_scheduler.state_dict(), _TRAINER: self._trainer_state()}

    def _trainer_state(self) -> str:
        """As the Trainer writes it to disk, with what its callbacks keep."""
        told = dataclasses.asdict(self.state)
        callbacks: dict[str, list[Any]] = {}
        for one in (*self.callback_handler.callbacks, self.control):
            if callable(state_of := getattr(one, "state", None)):
                callbacks.setdefault(type(one).__name__, []).append(state_of())
        told["stateful_callbacks"] = {name: kept if len(kept) > 1 else kept[0] for name, kept in callbacks.items()}
        return json.dumps(told, sort_keys=True)


class _Resumed:
    """A step that a Trainer goes on from."""

    def __init__(self, folder: Path, step: int, save: str) -> None:
        self.folder = folder
        self._chosen = (step, save)
        self._generators: bytes | None = None

    def write_state(self, saves: Checkpointer) -> None:
        told: dict[str, Any] = {_TRAINER: ""}
        if direct.load(told, self._chosen[0], tiers=saves.tiers) is None:
            message = f"step {self._chosen[0]} can no longer be read: it is complete in no tier any more"
            raise CheckpointUnreadable(message)
        (self.folder / _STATE_FILE).write_text(told[_TRAINER], encoding="utf-8")

    def fill(self, saves: Checkpointer, whole: dict[str, Any]) -> None:
        saves.restore(whole, self._chosen)
        self._generators = generators.pack()

    def restore_generators(self) -> None:
        """The Trainer draws random numbers between the filling of its state and the first step."""
        if self._generators is not None:
            generators.unpack(self._generators)


def _innermost(optimizer: Any) -> Any:
    """Accelerate wraps it."""
    while not isinstance(optimizer, torch.optim.Optimizer) or hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    return optimizer
