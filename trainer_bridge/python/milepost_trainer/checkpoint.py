"""Checkpoints and exports.

A checkpoint is a Hugging Face model directory in float32 (so any tool can read the weights) with trainer.pt (optimizer,
random state, counters, and the value head where there is one) and COMMIT, a JSON text of every file's SHA-256 and the
batch ids, written last. A directory without COMMIT is no checkpoint and is refused. Exports never hold the value head.

Format 2 is format 1 with a value head: a trainer that knows none refuses it instead of training on without it.
"""

import json
import os

import torch

from milepost_trainer import files, model, optim
from milepost_trainer.batch import sha256_of
from milepost_trainer.errors import TrainerError, invalid
from milepost_trainer.trainer import Trainer

FORMATS = (1, 2)
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
        if trainer.head is not None:
            state["value_head"] = trainer.head.state_dict()
        torch.save(state, os.path.join(tmp, "trainer.pt"))
        commit = {
            "format": 1 if trainer.head is None else 2,
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
    if not isinstance(commit, dict) or commit.get("format") not in FORMATS:
        raise TrainerError("corrupt", f"checkpoint {path}: {COMMIT} names no known format; allowed: {FORMATS}")
    for name, want in commit["files"].items():
        file = os.path.join(path, name)
        if not os.path.isfile(file):
            raise TrainerError("corrupt", f"checkpoint {path}: {name} is missing")
        if (found := sha256_of(file)) != want:
            raise TrainerError("corrupt", f"checkpoint {path}: {name} has SHA-256 {found}; allowed: {want}")
    return commit


def load(trainer: Trainer, path: str, reference: str, value_head: bool = False, fresh_value_head: bool = False) -> None:
    """Verifies everything, then replaces the trainer's state as a whole.

    value_head says whether a value head is wanted; with fresh_value_head a checkpoint without one gets a new one, and
    the optimizer keeps its state of everything else.
    """
    commit = read_commit(path)
    saved = commit["format"] == 2
    if saved and not value_head:
        raise invalid(
            f"checkpoint {path} holds a value head, which this run does not want; allowed: an estimator with values "
            "(ppo_gae), or an exported model, which has none"
        )
    if value_head and not saved and not fresh_value_head:
        raise invalid(f"checkpoint {path} holds no value head; allowed: one that does, or fresh_value_head for a new one")
    state = torch.load(os.path.join(path, "trainer.pt"), weights_only=True, map_location="cpu")
    fresh = Trainer()
    fresh.init(path, reference, state["dtype"], state["seed"], value_head)
    if (found := model.weights_sha256(fresh.net)) != commit["weights_sha256"]:
        raise TrainerError("corrupt", f"checkpoint {path}: loaded weights hash to {found}; allowed: {commit['weights_sha256']}")
    fresh.updates, fresh.batch_ids = state["updates"], state["batch_ids"]
    fresh.pending_optimizer = state["optimizer"]
    if saved:
        fresh.head.load_state_dict(state["value_head"])
    elif value_head and state["optimizer"] is not None:
        fresh.pending_optimizer = optim.with_head(state["optimizer"], fresh.head)
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
