"""A user's training script: a small character-level GPT on the English of Python's own documentation.

Nothing in it knows of nodes, failures or recovery; Everstep's part is the five marked lines. It runs alone as well: ``python train_gpt.py``.
"""

from __future__ import annotations

import argparse
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import Dataset

import everstep

WINDOW = 64


class Characters(Dataset[tuple[Tensor, Tensor]]):
    """Windows of text and, as targets, the same windows one character later; all as int64 of shape (WINDOW,)."""

    def __init__(self, text: str) -> None:
        alphabet = sorted(set(text))
        self.vocabulary = len(alphabet)
        index = {character: number for number, character in enumerate(alphabet)}
        self.codes = torch.tensor([index[character] for character in text], dtype=torch.int64)

    def __len__(self) -> int:
        return (len(self.codes) - 1) // WINDOW

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        start = number * WINDOW
        return self.codes[start : start + WINDOW], self.codes[start + 1 : start + WINDOW + 1]


class Block(nn.Module):
    """Causal self-attention and a feed-forward layer, both behind a norm; (batch, time, width) → the same."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.mixing = nn.Linear(width, width)
        self.before_feed = nn.LayerNorm(width)
        self.feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        split = self.attention(self.before_attention(x)).view(batch, time, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mixing(mixed.transpose(1, 2).reshape(batch, time, width))
        fed: Tensor = self.feed(self.before_feed(x))
        return x + fed


class GPT(nn.Module):
    """About a million parameters at the default size; (batch, time) of codes → (batch, time, vocabulary) of logits."""

    def __init__(self, vocabulary: int, *, width: int = 144, depth: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.codes = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(0.02 * torch.randn(WINDOW, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, codes: Tensor) -> Tensor:
        x = self.codes(codes) + self.places[: codes.shape[1]]
        logits: Tensor = self.head(self.norm(self.blocks(x)))
        return logits


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--steps", type=int, default=160)
    arguments.add_argument("--batch", type=int, default=32, help="windows in a step, over all ranks")
    arguments.add_argument("--seed", type=int, default=7)
    given = arguments.parse_args()

    run = everstep.init()  # 1: joins the job, or makes a run of its own
    torch.manual_seed(given.seed)
    data = Characters("\n\n".join(topics[name] for name in sorted(topics)))
    model = DistributedDataParallel(GPT(data.vocabulary))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=given.steps)
    state = everstep.State(model=model, optimizer=optimizer, scheduler=schedule)  # 2: what a recovery must bring back

    @everstep.resilient(state, everstep.Checkpointer())  # 3: goes on in the same process when the membership changes
    def train(run: everstep.Run) -> None:
        for step, (codes, targets) in run.steps(data, global_batch=given.batch, until=given.steps, seed=given.seed):  # 4
            loss = functional.cross_entropy(model(codes).flatten(0, 1), targets.flatten())
            (loss / run.accumulation).backward()
            with run.update(step, loss=loss):  # 5: the vote, and the critical section
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()

    train()
    if run.rank == 0:
        print(f"done: {given.steps} steps", flush=True)


if __name__ == "__main__":
    main()
