"""Checkpoints and exports.

A checkpoint is a directory that any number of ranks writes and any other number reads:

    state/         torch.distributed.checkpoint: what is trained (weights or adapter, value head), AdamW's state, random state
    config.json    of the model, with the tokenizer's files beside it
    trainer.json   counters, batch ids, what state/ holds, and below an adapter the path and the hash of its base
    COMMIT         SHA-256 of every other file, written last

A directory without COMMIT is no checkpoint and is refused. An export is a Hugging Face model directory for the sampler and
any other tool; it never holds the value head.

Formats 1 and 2, of one process, kept the weights as a model directory; they are refused by name.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import warnings

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict

from milepost_trainer import files, lora, model, policy, transfer
from milepost_trainer.batch import sha256_of
from milepost_trainer.errors import TrainerError, as_trainer_error, invalid
from milepost_trainer.options import PLAIN, Options
from milepost_trainer.ranks import Ranks
from milepost_trainer.trainer import Trainer

FORMAT = 3
COMMIT = "COMMIT"
STATE = "state"
ABOUT = "trainer.json"


def save(trainer: Trainer, path: str) -> None:
    """Writes a checkpoint; all ranks call it, and all see the same file system."""
    trainer.require()
    if not path:
        raise invalid("dir is empty; allowed: the directory to write")
    group = trainer.ranks
    about = {
        "dtype": trainer.dtype,
        "seed": trainer.seed,
        "updates": trainer.updates,
        "batch_ids": list(trainer.batch_ids),
        "value_head": trainer.head is not None,
        "optimizer": bool(trainer.optimizer.state),
        "adapter": dataclasses.asdict(trainer.policy.adapter) if trainer.policy.adapter else None,
        "weights_sha256": policy.weights_sha256(trainer.policy, group),
    }
    with _directory(group, path) as tmp:
        with _storage(path):
            dcp.save(_state(trainer), checkpoint_id=os.path.join(tmp, STATE), no_dist=group.world == 1)
        with group.together():
            if group.first:
                model.write_config(tmp, trainer.net, trainer.tokenizer_files, "float32")
                _write_json(tmp, ABOUT, about)
        hashes = _hashes(group, tmp, files.walk(tmp))
        with group.together():
            if group.first:
                _write_json(tmp, COMMIT, {"format": FORMAT, "files": hashes})


def _state(trainer: Trainer) -> dict:
    """What the state directory holds, by name; the tensors are the trainer's own, or their shards."""
    out = {"weights": trainer.policy.trained(), "random": torch.get_rng_state()}
    if trainer.optimizer.state:
        out["optimizer"] = get_optimizer_state_dict(trainer.policy, trainer.optimizer)["state"]
    return out


@contextlib.contextmanager
def _storage(path: str = ""):
    """Turns a failure of torch.distributed.checkpoint, which it raises on all ranks, into the first rank's own."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is disabled")
        try:
            yield
        except CheckpointException as e:
            rank, (fault, _) = min(e.failures.items())
            known = as_trainer_error(fault)
            if "inline_container" in str(fault) and path:  # PyTorch's writer says no more of a file that it could not write
                free = shutil.disk_usage(os.path.dirname(path) or ".").free >> 20
                raise TrainerError(
                    "unavailable", f"rank {rank}: {path} cannot be written ({free} MB are free there): {known}"
                ) from e
            raise TrainerError(known.kind, f"rank {rank}: {known}") from e


@contextlib.contextmanager
def _directory(group: Ranks, path: str):
    """files.directory on every rank: rank 0 makes it and puts it in place."""
    with contextlib.ExitStack() as stack:
        tmp = None
        with group.together():
            if group.first:
                tmp = stack.enter_context(files.directory(path, sync=True))
        yield group.broadcast(tmp)
        with group.together():
            stack.close()


def _write_json(directory: str, name: str, value) -> None:
    with open(os.path.join(directory, name), "w", encoding="utf-8") as f:
        json.dump(value, f, indent=2)
        f.write("\n")


def _hashes(group: Ranks, directory: str, names: list[str]) -> dict[str, str]:
    """SHA-256 by name; the ranks share the reading."""
    mine = {}
    with group.together():
        for name in sorted(names)[group.rank :: group.world]:
            mine[name] = sha256_of(os.path.join(directory, name))
    return dict(sorted(item for part in group.gather(mine) for item in part.items()))


def read_about(group: Ranks, path: str) -> dict:
    """Verifies every file and returns what the checkpoint says of itself."""
    with group.together():
        commit = _read_commit(path)
        for name in commit["files"]:
            if not os.path.isfile(os.path.join(path, name)):
                raise TrainerError("corrupt", f"checkpoint {path}: {name} is missing")
    for name, found in _hashes(group, path, list(commit["files"])).items():
        if found != (want := commit["files"][name]):
            raise TrainerError("corrupt", f"checkpoint {path}: {name} has SHA-256 {found}; allowed: {want}")
    with open(os.path.join(path, ABOUT), encoding="utf-8") as f:
        return json.load(f)


def wanted(about: dict) -> dict:
    """The arguments of `load` that ask for what a checkpoint says of itself."""
    saved = about.get("adapter")
    adapter = (
        None
        if saved is None
        else lora.LoraConfig(**saved["config"] | {"target_modules": tuple(saved["config"]["target_modules"])})
    )
    return {"value_head": about["value_head"], "options": Options(lora=adapter)}


def _read_commit(path: str) -> dict:
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
        named = commit.get("format") if isinstance(commit, dict) else None
        raise TrainerError("corrupt", f"checkpoint {path}: {COMMIT} has format {named}; allowed: {FORMAT}")
    return commit


def load(
    trainer: Trainer, path: str, reference: str, value_head=False, fresh_value_head=False, recompute=False, options=PLAIN
) -> None:
    """Verifies everything, then replaces the trainer's state as a whole; all ranks call it.

    value_head says whether a value head is wanted; with fresh_value_head a checkpoint without one gets a new one, and
    the optimizer keeps its state of everything else.
    """
    group = trainer.ranks
    about = read_about(group, path)
    saved = about["value_head"]
    if saved and not value_head:
        raise invalid(
            f"checkpoint {path} holds a value head, which this run does not want; allowed: an estimator with values "
            "(ppo_gae), or an exported model, which has none"
        )
    if value_head and not saved and not fresh_value_head:
        raise invalid(f"checkpoint {path} holds no value head; allowed: one that does, or fresh_value_head for a new one")
    fresh = Trainer(group)
    loaded, placed = _place(fresh, path, about, value_head, recompute, options)
    fresh.adopt(loaded, placed, about["dtype"], about["seed"])
    fresh.reference = fresh.load_reference(reference, placed)
    _fill(fresh, path, about)
    if (found := policy.weights_sha256(fresh.policy, group)) != about["weights_sha256"]:
        raise TrainerError("corrupt", f"checkpoint {path}: loaded weights hash to {found}; allowed: {about['weights_sha256']}")
    fresh.updates, fresh.batch_ids = about["updates"], about["batch_ids"]
    trainer.__dict__.update(fresh.__dict__)
    policy.release(group)


def _place(fresh: Trainer, path: str, about: dict, value_head: bool, recompute: bool, options):
    """The policy that the state directory fills: without any weights, or with an adapter's base."""
    saved, group = about.get("adapter"), fresh.ranks
    if (saved is None) != (options.lora is None):
        raise invalid(
            f"checkpoint {path} holds {'no' if saved is None else 'an'} adapter, and trainer.lora wants "
            f"{'one' if saved is None else 'none'}; allowed: what the checkpoint holds, or a start from its exported model"
        )
    if saved is not None:
        loaded, placed = fresh.load_model(saved["base"], value_head, recompute, options)
        placed.adapter.check(path, saved)
        return loaded, placed
    with group.together():
        loaded = model.skeleton(path)
    return loaded, policy.hollow(policy.equip(loaded.model, value_head, recompute, options, group), group)


def _fill(fresh: Trainer, path: str, about: dict) -> None:
    """Reads the state directory into a trainer whose policy has no values of what is trained yet."""

    def wanted(name: str) -> bool:
        return about["value_head"] or not name.startswith(policy.HEAD)

    weights = fresh.policy.trained()
    state = {"weights": {k: v for k, v in weights.items() if wanted(k)}, "random": torch.get_rng_state()}
    optimizer = None
    if about["optimizer"]:
        optimizer = get_optimizer_state_dict(fresh.policy, fresh.optimizer)
        state["optimizer"] = {k: v for k, v in optimizer["state"].items() if wanted(k)}
    with _storage():
        dcp.load(state, checkpoint_id=os.path.join(path, STATE), no_dist=fresh.ranks.world == 1)
    fresh.policy.load_state_dict(weights, strict=False)  # what is frozen is not in it
    if optimizer is not None:
        set_optimizer_state_dict(fresh.policy, fresh.optimizer, optimizer)
        for p in fresh.head.parameters() if fresh.head is not None and not about["value_head"] else ():
            fresh.optimizer.state[p]["step"].zero_()  # a new head has made no step; its moments are zero
    torch.set_rng_state(state["random"])


def export(trainer: Trainer, path: str, dtype: str, adapter: bool = False) -> tuple[str, int]:
    """Writes a model directory for the sampler, or the adapter alone; returns the hash of the policy's weights and the bytes
    written. All ranks call it."""
    trainer.require()
    group, dtype = trainer.ranks, dtype or trainer.dtype
    if dtype not in model.DTYPES:
        raise invalid(f"dtype is {dtype!r}; allowed: {', '.join(model.DTYPES)}")
    if not path:
        raise invalid("dir is empty; allowed: the directory to write")
    about, size = trainer.policy.adapter, 0
    if adapter and about is None:
        raise invalid("there is no adapter; allowed: Init or Load with lora")
    digest = policy.weights_sha256(trainer.policy, group)
    if adapter:
        state = {k: policy.whole(v.detach()) for k, v in lora.own_tensors(trainer.policy.tensors()).items()}
    else:
        state = policy.full_state(trainer.policy, group)
    with group.together():
        if group.first:
            with files.directory(path) as tmp:
                if adapter:
                    lora.write(tmp, about, state, model.DTYPES[dtype])
                else:
                    model.write(tmp, trainer.net, state, trainer.tokenizer_files, dtype)
                size = sum(os.path.getsize(os.path.join(tmp, n)) for n in files.walk(tmp))
            if not adapter:
                transfer.remember(trainer.policy, path, dtype)
    return digest, group.broadcast(size)
