"""A sequence of calls to a trainer, run by one process or by each rank of several (torchrun runs this file).

    two_ranks.py STEPS.json OUT.pt

A step is [operation, fields]. OUT gets a list with what came of each step (an error as {"error": [kind, message]}), and
the whole gradient of every optimizer step.
"""

import json
import sys

import torch

from milepost_trainer import calls, critic, lora, loss, optim, pack, policy, ranks, sft, transfer
from milepost_trainer.errors import TrainerError
from milepost_trainer.options import Options
from milepost_trainer.trainer import Trainer, UpdateConfig


def update_config(fields: dict) -> UpdateConfig:
    fields = dict(fields)
    return UpdateConfig(
        loss=loss.LossConfig(**fields.pop("loss", {})),
        optimizer=optim.OptimizerConfig(lr=1e-2, clip_norm=1.0),
        value=critic.ValueConfig(**fields.pop("value", {})),
        **fields,
    )


def prepared(name: str, fields: dict, told: list) -> tuple[dict, dict]:
    """Fields with their configuration made, and the arguments that are rank 0's alone."""
    if name == "update":
        return fields | {"config": update_config(fields["config"])}, {}
    if name == "supervised":
        config = sft.SupervisedConfig(optim.OptimizerConfig(1e-3), steps=3, batch_episodes=5, micro_tokens=200)
        return fields | {"config": config}, {"progress": told.append, "alive": lambda: True}
    if name in ("init", "load"):
        options = dict(fields.get("options", {}))
        if "lora" in options:
            options["lora"] = lora.LoraConfig(**options["lora"])
        return fields | {"options": Options(**options)}, {}
    return fields, {}


def watch_gradients() -> list[dict]:
    """Keeps the gradients that each optimizer step gets; all ranks must watch."""
    kept, real = [], optim.step

    def step(net, optimizer, clip_norm, value, head=None, **fields):
        parts = {"net": net} | ({} if head is None else {"head": head})
        named = [(f"{k}.{n}", p) for k, m in parts.items() for n, p in m.named_parameters()]
        kept.append({n: policy.whole(p.grad).clone() for n, p in named if p.requires_grad})
        return real(net, optimizer, clip_norm, value, *(() if head is None else (head,)), **fields)

    optim.step = step
    return kept


class Wire:
    """A link that keeps what is sent, or breaks at the second buffer."""

    device, limit = torch.device("cpu"), 4096

    def __init__(self, breaks: bool = False):
        self.got, self.breaks = [], breaks

    def send(self, buffers, alive) -> int:
        for buffer in buffers:
            if self.breaks and self.got:
                raise TrainerError("unavailable", "broke off")
            self.got.append(buffer.clone())
        return 0


def sent(trainer: Trainer, path: str) -> dict:
    """What a transfer of an export sends; one that breaks off before must leave the ranks in step."""
    calls.run(trainer, "export", {"path": path, "dtype": "float32"})
    plan, failed = transfer.plan(trainer, path), ""
    fields = {"path": path, "plan_sha256": plan["sha256"]}
    try:
        calls.run(trainer, "transfer", fields, link=Wire(breaks=True))
    except TrainerError as e:
        failed = e.kind
    scored = calls.run(trainer, "score", {"sequences": [[1, 2, 3]], "temperature": 1.0, "reference": False})
    link = Wire()
    done = calls.run(trainer, "transfer", fields, link=link)
    return {
        "live": done["live"], "failed": failed, "scored": len(scored[0]), "names": [t["name"] for t in plan["tensors"]],
        "bytes": b"".join(b.numpy().tobytes() for b in link.got),
    }  # fmt: skip


def run(group: ranks.Ranks, steps: list) -> dict:
    """Rank 0's part of the calls."""
    trainer, results, told, kept = Trainer(group), [], [], watch_gradients()
    for name, fields in steps:
        if name == "sent":
            results.append(sent(trainer, **fields))
            continue
        fields, local = prepared(name, fields, told)
        try:
            results.append(calls.run(trainer, name, fields, **local))
        except TrainerError as e:
            results.append({"error": [e.kind, str(e)]})
    return {"results": results, "progress": told, "gradients": kept}


def main(steps_file: str, out: str) -> None:
    torch.set_num_threads(1)
    pack.HEAD_ELEMENTS = 330 * 9  # the head runs in recomputed chunks, as with a large vocabulary
    group = ranks.start()
    if group.first:
        with open(steps_file, encoding="utf-8") as f:
            torch.save(run(group, json.load(f)), out)
        calls.stop(group)
    else:
        watch_gradients()
        calls.follow(group)
    ranks.stop(group)


if __name__ == "__main__":
    main(*sys.argv[1:])
