"""A Hugging Face Trainer on a tiny model of random weights. Usage: trainer.py ROUNDS; see plain.py, of which it takes the notes, dies_at and environment."""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

import everstep
from everstep.checkpoint.trainer import TieredTrainerMixin

SAMPLES = [
    {"input_ids": (row := torch.randint(0, 50, (12,), generator=torch.Generator().manual_seed(number))), "labels": row}
    for number in range(24)
]


class Noting(TieredTrainerMixin, Trainer):
    notes: Path
    dies_at: int | None = None

    def training_step(self, *args: Any, **options: Any) -> torch.Tensor:
        step = self.state.global_step
        if step == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        loss: torch.Tensor = super().training_step(*args, **options)
        with self.notes.open("a") as stream:
            stream.write(
                json.dumps({"step": step, "loss": loss.item(), "pid": os.getpid(), "rate": self._get_learning_rate()}) + "\n"
            )
        return loss


class Counting(TrainerCallback):
    """Keeps a number of its own in the trainer's state."""

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        del args, control
        state.log_history.append({"counted": state.global_step})


def train(given: dict[str, Any]) -> None:
    torch.manual_seed(1)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    )
    notes = Path(given["notes"])
    args = TrainingArguments(
        output_dir=str(notes / "out"),
        per_device_train_batch_size=4,
        num_train_epochs=2,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=3,
        learning_rate=0.01,
        warmup_steps=3,
        logging_steps=4,
    )
    trainer = Noting(model=model, args=args, train_dataset=SAMPLES, callbacks=[Counting()])
    trainer.checkpointer = everstep.Checkpointer(durable_every=3)
    trainer.notes, trainer.dies_at = notes / "losses-0.jsonl", given.get("dies_at")
    trainer.train(resume_from_checkpoint=True)
    weights = sum(parameter.double().sum().item() for parameter in model.parameters())
    counted = [entry["counted"] for entry in trainer.state.log_history if "counted" in entry]
    (notes / "end.json").write_text(json.dumps({"weights": weights, "counted": counted}))


def main() -> None:
    told = []
    for runs in json.loads(Path(sys.argv[1]).read_text()):
        pids = []
        for run in runs:
            pid = os.fork()
            if not pid:
                os.environ.update(run["environment"])
                code = 1
                try:
                    train(run)
                    code = 0
                except BaseException:  # noqa: BLE001, the fork ends here, whatever comes
                    traceback.print_exc()
                finally:
                    sys.stderr.flush()
                    os._exit(code)
            pids.append(pid)
        told.append([[os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])] for pid in pids])
    print(json.dumps(told))


if __name__ == "__main__":
    main()
