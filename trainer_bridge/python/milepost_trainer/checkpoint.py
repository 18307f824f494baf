"""Checkpoints and exports.

A checkpoint is a Hugging Face model directory in float32 (so any tool can read the weights) with trainer.pt (optimizer,
random state, counters) and COMMIT, a JSON text of every file's SHA-256 and the batch ids, written last. A directory
without COMMIT is no checkpoint and is refused.
"""

import json
import os

import torch

from milepost_trainer import files, model
from milepost_trainer.batch import sha256_of
from milepost_trainer.errors import TrainerError, invalid
from milepost_trainer.trainer import Trainer

FORMAT = 1
COMMIT = "COMMIT"


def save(trainer: Trainer, path: str) -> None:
    trainer.require()
    if not path:
        raise invalid("dir is empty; allowed: the directory to write")
    with files.directory(path, sync=True) as tmp:
        model.write(tmp, trainer.net, trainer.tokenizer_files, "float32")
        state = {
            "optimizer": trainer.optimizer_state(),
            "rng": torch.get_rng_state(),
            "dtype": trainer.dtype,
            "seed": trainer.seed,
            "updates": trainer.updates,
            "batch_ids": list(trainer.batch_ids),
        }
        torch.save(state, os.path.join(tmp, "trainer.pt"))
        commit = {
            "format": FORMAT,
            "updates": trainer.updates,
            "batch_ids": trainer.batch_ids,
            "weights_sha256": model.weights_sha256(trainer.net),
            "files": {name: sha256_of(os.path.join(tmp, name)) for name in sorted(os.listdir(tmp))},
        }
        with open(os.path.join(tmp, COMMIT), "w", encoding="utf-8") as f:
            json.dump(commit, f, indent=2)
            f.write("\n")


def read_commit(path: str) -> dict:
    if not os.path.isdir(path):
        raise TrainerError("not_found", f"checkpoint {path} does not exist")
    try:
        with open(os.path.join(path, COMMIT), encoding="utf-8") as f:
            commit = json.load(f)
    except FileNotFoundError:
        raise TrainerError("corrupt", f"checkpoint {path} has no {COMMIT}, so it was never finished") from None
    except ValueError as e:
        raise TrainerError("corrupt", f"checkpoint {path}: {COMMIT} is no JSON: {e}") from e
    if not isinstance(commit, dict) or commit.get("format") != FORMAT:
        raise TrainerError("corrupt", f"checkpoint {path}: {COMMIT} names no format; allowed: {FORMAT}")
    for name, want in commit["files"].items():
        file = os.path.join(path, name)
        if not os.path.isfile(file):
            raise TrainerError("corrupt", f"checkpoint {path}: {name} is missing")
        if (found := sha256_of(file)) != want:
            raise TrainerError("corrupt", f"checkpoint {path}: {name} has SHA-256 {found}; allowed: {want}")
    return commit


def load(trainer: Trainer, path: str, reference: str) -> None:
    """Verifies everything, then replaces the trainer's state as a whole."""
    commit = read_commit(path)
    state = torch.load(os.path.join(path, "trainer.pt"), weights_only=True, map_location="cpu")
    fresh = Trainer()
    fresh.init(path, reference, state["dtype"], state["seed"])
    if (found := model.weights_sha256(fresh.net)) != commit["weights_sha256"]:
        raise TrainerError("corrupt", f"checkpoint {path}: loaded weights hash to {found}; allowed: {commit['weights_sha256']}")
    fresh.updates, fresh.batch_ids = state["updates"], state["batch_ids"]
    fresh.pending_optimizer = state["optimizer"]
    torch.set_rng_state(state["rng"])
    trainer.__dict__.update(fresh.__dict__)


def export(trainer: Trainer, path: str, dtype: str) -> tuple[str, int]:
    """Writes a model directory for the sampler; returns the hash of the weights and the bytes written."""
    trainer.require()
    dtype = dtype or trainer.dtype
    if dtype not in model.DTYPES:
        raise invalid(f"dtype is {dtype!r}; allowed: {', '.join(model.DTYPES)}")
    if not path:
        raise invalid("dir is empty; allowed: the directory to write")
    with files.directory(path) as tmp:
        model.write(tmp, trainer.net, trainer.tokenizer_files, dtype)
        size = sum(os.path.getsize(os.path.join(tmp, n)) for n in os.listdir(tmp))
    return model.weights_sha256(trainer.net), size
