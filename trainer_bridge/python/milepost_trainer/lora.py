"""Low-rank adapters (LoRA, Hu et al. 2021) by peft: the model's own weights are frozen, and beside each chosen linear
layer W two small matrices are trained, y = W x + alpha / rank * B A x. B starts at 0, so the first policy is the model.

There is no dropout: the pass that gives the old logprobs and the one that trains have to agree.

What is trained, saved and put back after a failure is the adapter (and a value head) alone. A checkpoint names the model
below it, the base, by path and by the hash of its weights. Exports are either the adapter as peft writes it, for a server
that takes adapters, or a whole model with the adapter merged, for everything else.
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
from dataclasses import dataclass

import peft
import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from milepost_trainer.errors import TrainerError, invalid

NAME = "default"  # of the adapter in peft's modules
WEIGHTS, ABOUT = "adapter_model.safetensors", "adapter_config.json"  # files of an exported adapter
MATRICES = (f".lora_A.{NAME}.weight", f".lora_B.{NAME}.weight")  # ends of the names of A [rank, in] and B [out, rank]
BASE = ".base_layer"  # in the names of the weights below them


@dataclass(frozen=True)
class LoraConfig:
    rank: int = 16
    alpha: float = 32.0
    target_modules: tuple[str, ...] = ()  # last parts of module names; empty = every linear layer but the head

    def __post_init__(self):
        if self.rank < 1:
            raise invalid(f"lora.rank is {self.rank}; allowed: 1 or more")
        if not (math.isfinite(self.alpha) and self.alpha > 0):
            raise invalid(f"lora.alpha is {self.alpha}; allowed: above 0")

    def resolve(self, net: nn.Module) -> "LoraConfig":
        """The same with the names of the layers that an adapter goes to, sorted."""
        known = {n.rsplit(".", 1)[-1] for n, m in net.model.named_modules() if isinstance(m, nn.Linear)}
        for name in self.target_modules:
            if name not in known:
                raise invalid(f"lora.target_modules names {name!r}; allowed: {', '.join(sorted(known))}")
        return dataclasses.replace(self, target_modules=tuple(sorted(set(self.target_modules) or known)))

    def to_peft(self, base: str = "") -> peft.LoraConfig:
        return peft.LoraConfig(
            r=self.rank, lora_alpha=self.alpha, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM",
            target_modules=list(self.target_modules), base_model_name_or_path=base or None,
        )  # fmt: skip


@dataclass(frozen=True)
class Adapter:
    """What an adapter is trained on: its configuration, and the model below it."""

    config: LoraConfig  # with names
    base: str  # model directory
    base_sha256: str  # policy.sha256_of the base's weights: what Init of it without an adapter says

    def check(self, path: str, saved: dict | None) -> None:
        """Refuses a checkpoint whose adapter is another, or stands on another base."""
        mine = json.loads(json.dumps(dataclasses.asdict(self)))
        if saved["config"] != mine["config"]:
            raise invalid(f"checkpoint {path} holds an adapter of {saved['config']}; allowed: {mine['config']}, as configured")
        if saved["base_sha256"] != self.base_sha256:
            raise TrainerError(
                "corrupt",
                f"checkpoint {path}: its base {self.base} has weights that hash to {self.base_sha256}; "
                f"allowed: {saved['base_sha256']}, those that the adapter was trained on",
            )

    def sha256(self, tensors: str) -> str:
        """The hash of the policy's weights: over base, configuration and the hash of the adapter's tensors."""
        return hashlib.sha256(json.dumps([self.base_sha256, dataclasses.asdict(self.config), tensors]).encode()).hexdigest()


def apply(net: nn.Module, config: LoraConfig, seed: int) -> LoraConfig:
    """Freezes the model and puts adapters into it; returns the configuration with names. On a skeleton the adapters have no
    memory either."""
    config = config.resolve(net)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        net.requires_grad_(False)
        meta = next(net.parameters()).is_meta
        peft.inject_adapter_in_model(config.to_peft(), net, NAME, low_cpu_mem_usage=meta)
    return config


def base_tensors(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights below the adapters, by the names that they have without."""
    return {k.replace(BASE, ""): v for k, v in state.items() if not k.endswith(MATRICES)}


def own_tensors(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The adapters' matrices, by their names in the model."""
    return {k: v for k, v in state.items() if k.endswith(MATRICES)}


def merged(name: str, state: dict[str, Tensor], adapter: Adapter | None, whole) -> Tensor:
    """W + alpha / rank * B A for the name of a weight below an adapter; any other weight as it is. `whole` gathers."""
    weight, module = whole(state[name].detach()), name.removesuffix(f"{BASE}.weight")
    if module == name:
        return weight
    a, b = (whole(state[module + end].detach()) for end in MATRICES)
    return weight + (b @ a) * (adapter.config.alpha / adapter.config.rank)


def write(directory: str, adapter: Adapter, state: dict[str, Tensor], dtype: torch.dtype) -> None:
    """Writes an adapter as peft does: its matrices by peft's names and its configuration, which names the base."""
    tensors = {_exported(k): v.to(device="cpu", dtype=dtype).contiguous() for k, v in state.items()}
    save_file(tensors, os.path.join(directory, WEIGHTS), metadata={"format": "pt"})
    config = adapter.config.to_peft(adapter.base)
    config.inference_mode = True
    fields = {k: sorted(v) if isinstance(v, set) else v for k, v in config.to_dict().items()}
    with open(os.path.join(directory, ABOUT), "w", encoding="utf-8") as f:
        json.dump(fields, f, indent=2, sort_keys=True)
        f.write("\n")


def _exported(name: str) -> str:
    """peft's name for a matrix of ours."""
    return f"base_model.model.{name.replace(f'.{NAME}.', '.')}"


def read_about(path: str) -> dict | None:
    """The configuration of an exported adapter; None where path is no such directory."""
    try:
        with open(os.path.join(path, ABOUT), encoding="utf-8") as f:
            return json.load(f)
    except FileNotFoundError:
        return None


def config_of(about: dict) -> LoraConfig:
    return LoraConfig(about["r"], float(about["lora_alpha"]), tuple(about["target_modules"]))


def base_of(path: str, wanted: LoraConfig | None) -> str:
    """The model directory below an exported adapter; any other path as it is. An adapter that is not the wanted one is
    refused."""
    about = read_about(path)
    if about is None:
        return path
    if wanted is None:
        raise invalid(f"model {path} is an adapter; allowed: one with trainer.lora, or a model directory")
    if about["r"] != wanted.rank or about["lora_alpha"] != wanted.alpha:
        raise invalid(
            f"adapter {path} has rank {about['r']} and alpha {about['lora_alpha']}; allowed: {wanted.rank} and {wanted.alpha:g}"
        )
    return about["base_model_name_or_path"]


def fill(net: nn.Module, path: str) -> None:
    """Reads the matrices of an exported adapter into a model that has one."""
    saved = load_file(os.path.join(path, WEIGHTS))
    own = own_tensors(net.state_dict())
    if {_exported(k): v.shape for k, v in own.items()} != {k: v.shape for k, v in saved.items()}:
        raise invalid(f"adapter {path} is of other layers; allowed: trainer.lora.target_modules as it was trained with")
    net.load_state_dict({k: saved[_exported(k)] for k in own}, strict=False)


@contextlib.contextmanager
def _bypassed(net: nn.Module):
    """Inside it the model is the base. peft's own switch would mark parameters as trained or not, which shards mind."""
    layers = [m for m in net.modules() if isinstance(m, BaseTunerLayer)]
    try:
        for layer in layers:
            layer._disable_adapters = True
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False


class Base:
    """The model below a policy's adapter, called as the policy is: the reference of the KL term without a second model in
    memory."""

    def __init__(self, policy):
        self.policy = policy

    def __call__(self, *args, **kwargs):
        with _bypassed(self.policy.net):
            return self.policy(*args, **kwargs)

    @property
    def sharded(self) -> bool:
        return self.policy.sharded

    @property
    def context(self):
        return self.policy.context

    def reshard(self) -> None:
        self.policy.reshard()
