"""Supervised fine-tuning on demonstrations: only what an assistant wrote is trained, its end token included."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from milepost_trainer import model, optim, policy, tokenizer
from milepost_trainer.errors import TrainerError, invalid
from milepost_trainer.trainer import Trainer


@dataclass(frozen=True)
class SupervisedConfig:
    optimizer: optim.OptimizerConfig
    epochs: int = 1  # used where steps is 0
    steps: int = 0
    batch_episodes: int = 32
    warmup: int = 0
    schedule: str = "cosine"
    final_lr: float = 0.1
    micro_tokens: int = 8192
    max_tokens: int = 0  # 0 = the model's context
    seed: int = 0

    def __post_init__(self):
        for name, low in (("steps", 0), ("batch_episodes", 1), ("warmup", 0), ("micro_tokens", 1), ("max_tokens", 0)):
            if getattr(self, name) < low:
                raise invalid(f"{name} is {getattr(self, name)}; allowed: {low} or more")
        if self.steps == 0 and self.epochs < 1:
            raise invalid(f"epochs is {self.epochs}; allowed: 1 or more, or steps above 0")
        if self.schedule not in optim.SCHEDULES:
            raise invalid(f"schedule is {self.schedule!r}; allowed: {', '.join(optim.SCHEDULES)}")
        if not 0 <= self.final_lr <= 1:
            raise invalid(f"final_lr is {self.final_lr}; allowed: 0 to 1")


@dataclass
class Encoded:
    ids: list[torch.Tensor]  # [T] int64, up to the last trained token
    wanted: list[torch.Tensor]  # [T] bool
    left_out: int


def encode(trainer: Trainer, path: str, max_tokens: int) -> Encoded:
    context = model.max_context(trainer.net.config)
    limit = min(max_tokens or context, context)
    ids, wanted, left_out = [], [], 0
    for tokens, mask in tokenizer.encode(trainer.tokenizer, tokenizer.read_demonstrations(path)):
        if len(tokens) > limit:
            left_out += 1
            continue
        ids.append(torch.tensor(tokens))
        wanted.append(torch.tensor(mask))
        wanted[-1][0] = False
    if not ids:
        raise invalid(f"demonstrations {path}: all {left_out} are longer than {limit} tokens; allowed: at least one that is not")
    if (worst := max(t.max().item() for t in ids)) >= trainer.net.config.vocab_size:
        raise invalid(f"demonstrations {path}: token {worst} is outside the model's vocabulary; tokenizer and model do not match")
    return Encoded(ids, wanted, left_out)


def order(count: int, batch: int, steps: int, seed: int):
    """Yields `steps` lists of at most `batch` indices: shuffled passes over all, cut where a pass ends."""
    generator = torch.Generator().manual_seed(seed)
    made = 0
    while made < steps:
        shuffled = torch.randperm(count, generator=generator).tolist()
        for start in range(0, count, batch):
            if made == steps:
                return
            yield shuffled[start : start + batch]
            made += 1


def run(trainer: Trainer, path: str, config: SupervisedConfig, progress: Callable[[dict], None], alive: Callable[[], bool]):
    """Fine-tunes, calling progress with the fields of SupervisedProgress after every step; all or nothing.

    `alive` turning false ends it with kind canceled. The update step's optimizer starts afresh afterwards.
    """
    trainer.require()
    with trainer.ranks.together():
        data = encode(trainer, path, config.max_tokens)
    undo = trainer.snapshot()
    try:
        with trainer.autocast():
            _steps(trainer, data, config, progress, alive)
    except BaseException:
        undo()
        raise
    trainer.fresh_optimizer()


def _steps(trainer: Trainer, data: Encoded, config: SupervisedConfig, progress, alive) -> None:
    count, group = len(data.ids), trainer.ranks
    steps = config.steps or config.epochs * math.ceil(count / config.batch_episodes)
    optimizer = optim.make(trainer.net)
    started, tokens, trained = time.perf_counter(), 0, 0
    for step, members in enumerate(order(count, config.batch_episodes, steps, config.seed)):
        if not group.broadcast(alive()):  # the first rank alone knows the caller
            raise TrainerError("canceled", f"cancelled at step {step} of {steps}; the weights are as before")
        lr = config.optimizer.lr * optim.schedule(config.schedule, step, steps, config.warmup, config.final_lr)
        optim.configure(optimizer, config.optimizer, lr)
        wanted = sum(int(data.wanted[i].sum()) for i in members)
        total = 0.0
        for p in policy.passes(trainer.policy, data.ids, data.wanted, members, config.micro_tokens, group):
            logprob, _, _ = trainer.policy(p.row)
            value = -logprob.sum() / wanted * float(p.trains)
            policy.backward(value, group)
            total += value.item() * p.tells
        (total,) = group.sum(total)
        norm = optim.step(trainer.net, optimizer, config.optimizer.clip_norm, total)
        tokens += sum(len(data.ids[i]) for i in members)
        trained += wanted
        seconds = time.perf_counter() - started
        progress(
            {
                "step": step + 1, "steps": steps, "loss": total, "lr": lr, "grad_norm": norm, "tokens": tokens,
                "trained_tokens": trained, "tokens_per_second": tokens / seconds, "seconds": seconds,
                "eta_seconds": seconds / (step + 1) * (steps - step - 1), "demonstrations": count, "left_out": data.left_out,
            }
        )  # fmt: skip
