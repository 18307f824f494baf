"""What an update of the trainer holds in memory, counted by PyTorch itself, for the test of this package.

python measure.py CASES.json: a list of {"model": a LlamaConfig or Qwen3Config as a mapping, "dtype", "recompute",
"tokens": lengths of the sequences of one row}; prints a list of {"parameters", "peak", "held", "disk", "rss"}, in bytes but the
first: peak is the largest sum of all tensors during an optimizer step over two rows, held is what remains after it
(weights and optimizer), disk a checkpoint's files, rss the largest that the process has been so far.
"""

import json
import os
import resource
import sys
import tempfile

import torch
import transformers
from milepost_trainer import checkpoint, optim, pack, policy, trainer
from torch.distributed._tools.mem_tracker import MemTracker

KINDS = {"llama": transformers.LlamaConfig, "qwen3": transformers.Qwen3Config}


def total(snapshot: dict) -> int:
    return sum(int(v) for device in snapshot.values() for k, v in device.items() if "Total" in str(k))


def disk(trained: policy.Policy, optimizer) -> int:
    """Bytes of the checkpoint of a trainer that has these, and no tokenizer."""
    owner = trainer.Trainer()
    owner.policy, owner.optimizer = trained, optimizer
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "checkpoint")
        checkpoint.save(owner, path)
        return sum(os.path.getsize(os.path.join(at, name)) for at, _, names in os.walk(path) for name in names)


def measure(case: dict) -> dict:
    fields = dict(case["model"])
    kind = KINDS[fields.pop("model_type")]
    torch.manual_seed(0)
    net = transformers.AutoModelForCausalLM.from_config(kind(**fields), attn_implementation=pack.ATTENTION)
    net.train()
    trained = policy.Policy(net, recompute=case["recompute"])
    optimizer = optim.make(net)
    optim.configure(optimizer, optim.OptimizerConfig(lr=1e-6), 1e-6)
    sequences = [torch.randint(0, net.config.vocab_size, (n,)) for n in case["tokens"]]
    row = pack.build(sequences, [torch.arange(len(s)) > 0 for s in sequences], list(range(len(sequences))))
    tracker = MemTracker()

    def step():
        on = case["dtype"] == "bfloat16"
        for _ in range(2):  # two rows: the second finds the gradients of the first
            tracker.reset_mod_stats()  # it knows of no second pass
            with torch.autocast("cpu", torch.bfloat16, enabled=on, cache_enabled=False):
                logprob, _, _ = trained(row, entropy=True)
                (-logprob.mean()).backward()
        optim.step(net, optimizer, 1.0, 0.0)

    step()  # makes the optimizer's state
    tracker.track_external(net, optimizer)
    with tracker:
        step()
    return {
        "parameters": sum(p.numel() for p in net.parameters()),
        "peak": total(tracker.get_tracker_snapshot("peak")),
        "held": total(tracker.get_tracker_snapshot("current")),
        "disk": disk(trained, optimizer),
        "rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
    }


if __name__ == "__main__":
    with open(sys.argv[1], encoding="utf-8") as f:
        print(json.dumps([measure(case) for case in json.load(f)]))
