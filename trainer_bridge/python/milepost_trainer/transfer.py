"""Weights straight to vLLM's workers: the trainer's end of vLLM's weight-transfer API.

For each replica the trainer offers a group of its own (`Links.open`), in which it is rank 0 and the replica's workers are the
rest; the caller has the server join it (/init_weight_transfer_engine). To send, the caller asks for the plan (names,
dtypes and shapes, which /update_weights needs), and then has the server receive and the trainer send at once.

What is sent is always the weights of a model directory: from memory where the trainer still holds what it exported there,
otherwise from the directory's files. So an older version can be sent while the trainer has gone on, and what arrives is
bit for bit what a server would read from the disk.

Invariants. One group a replica, so a replica that dies or hangs spoils its own group alone. No wait is longer than the
link's time-out; a link that failed is of no use any more, and the replica is offered another. Links are opened while the
worker thread trains; `send` runs on it, on all ranks: they gather one tensor after the other, the first sends, and where
it cannot, it goes on gathering, since the others wait for it.
"""

import base64
import concurrent.futures
import hashlib
import itertools
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion

from milepost_trainer import lora, model, nccl, policy
from milepost_trainer.errors import TrainerError, invalid
from milepost_vllm import wire

BACKENDS = ("gloo", "nccl")

DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}  # as safetensors files name them

Plan = list[tuple[str, torch.dtype, list[int]]]  # name, dtype and shape of each tensor, in the order in which they travel


# --- links ---


class Link:
    """One group: the trainer and a replica's workers. It is offered at once and joined in the background."""

    def __init__(self, join: Callable[[], object], invitation: dict, device: torch.device, timeout: float, limit: int):
        self.invitation, self.device, self.timeout, self.limit = invitation, device, timeout, limit
        self.joined: Future = Future()
        self.broken = False
        threading.Thread(target=self._join, args=(join,), daemon=True, name="transfer-join").start()

    def _join(self, join) -> None:
        try:
            self.joined.set_result(join())
        except BaseException as e:
            self.joined.set_exception(e)

    def send(self, buffers: Iterable[Tensor], alive: Callable[[], bool]) -> int:
        """Sends the buffers [bytes] in order; returns their bytes. Where it fails the link is closed."""
        sent, whole = 0, False
        try:
            group = self._bounded(sent, lambda: self._group(alive))
            for buffer in buffers:
                self._bounded(sent, lambda b=buffer: group.broadcast(b, self.timeout, alive))
                sent += buffer.numel()
            whole = True
        finally:
            group = None
            if not whole:
                self.close()
        return sent

    def close(self) -> None:
        """Lets go of the group, whose end the other side notices by its connections or by its own time-out."""
        self.broken = True
        joined, self.joined = self.joined, Future()
        if joined.done() and joined.exception() is None:
            joined.result().close()

    def _group(self, alive: Callable[[], bool]):
        """The group once all have come."""
        deadline = time.monotonic() + self.timeout
        while not self.joined.done() and time.monotonic() < deadline:
            if not alive():
                raise TimeoutError("given up before the replica came")
            concurrent.futures.wait([self.joined], timeout=0.1)
        return self.joined.result(timeout=0)

    @staticmethod
    def _bounded(sent: int, work: Callable[[], object]):
        try:
            return work()
        except Exception as e:
            reason = str(e) or type(e).__name__
        # Not from e, whose traceback would keep the group.
        raise TrainerError("unavailable", f"the transfer broke off after {sent} bytes: {reason}")


class Gloo:
    """A joined group on the CPU."""

    def __init__(self, store, name: str, size: int, host: str, timeout: float):
        self.group = wire.join(store, name, 0, size, host, timeout)

    def broadcast(self, buffer: Tensor, timeout: float, alive: Callable[[], bool]) -> None:
        wire.broadcast(self.group, buffer, timeout, alive)

    def close(self) -> None:
        """In the background: gloo closes its connections once what runs has ended, at the latest by the time-out."""
        last = [self.group]
        self.group = None
        threading.Thread(target=last.clear, daemon=True, name="transfer-close").start()


class Links:
    """The links by number. One lock guards them; nothing waits under it."""

    def __init__(self, device: torch.device):
        self.device = device
        self.lock = threading.Lock()
        self.stores: dict[int, object] = {}  # by the port that was asked for
        self.links: dict[int, Link] = {}
        self.of: dict[str, int] = {}  # the link of each replica
        self.numbers = itertools.count(1)

    def open(self, replica, backend, host, port, workers, timeout_seconds, buffer_bytes) -> dict:
        """Offers a replica a group, in place of the one it had; returns what it needs to join, and the link's number."""
        if backend not in BACKENDS:
            raise invalid(f"backend is {backend!r}; allowed: {', '.join(BACKENDS)}")
        if not replica or workers < 1 or not timeout_seconds > 0 or buffer_bytes < 1:
            raise invalid(
                f"replica is {replica!r}, workers {workers}, timeout_seconds {timeout_seconds}, buffer_bytes {buffer_bytes}; "
                "allowed: a name, and numbers above 0"
            )
        with self.lock:
            number = next(self.numbers)
            if backend == "gloo":
                link = self._gloo(f"transfer-{number}", host, port, workers + 1, timeout_seconds, buffer_bytes)
            else:
                link = self._nccl(workers + 1, timeout_seconds, buffer_bytes)
            before = self.links.pop(self.of.get(replica), None)
            self.links[number], self.of[replica] = link, number
        if before is not None:
            before.close()
        return {"link": number} | link.invitation

    def _gloo(self, name: str, host: str, port: int, size: int, timeout: float, limit: int) -> Link:
        if port not in self.stores:
            try:
                self.stores[port] = wire.store(host, port, timeout, serve=True)
            except Exception as e:
                allowed = "an address of this machine, and 0 or a free port"
                raise TrainerError("conflict", f"no store can be served at {host} port {port}: {e}; allowed: {allowed}") from e
        store = self.stores[port]
        cpu = torch.device("cpu")
        return Link(lambda: Gloo(store, name, size, host, timeout), {"port": store.port, "group": name}, cpu, timeout, limit)

    def _nccl(self, size: int, timeout: float, limit: int) -> Link:
        if self.device.type != "cuda":
            raise invalid("backend is nccl and the trainer has no GPU; allowed: gloo")
        unique = nccl.unique_id()
        invitation = {"nccl_unique_id": base64.b64encode(unique).decode()}
        return Link(lambda: nccl.Communicator(unique, size, self.device, timeout), invitation, self.device, timeout, limit)

    def get(self, number: int) -> Link:
        with self.lock:
            link = self.links.get(number)
        if link is None or link.broken:
            raise TrainerError("unavailable", f"there is no link {number}, or it broke; allowed: one that was opened since")
        return link


# --- what is sent ---


def remember(trained: policy.Policy, path: str, dtype: str) -> None:
    """Notes that the policy was exported to path: until its weights change they need not be read from there. The first rank."""
    now = policy.stamp(trained)
    same = {k: v for k, v in getattr(trained, "copies", {}).items() if v[1] == now}
    trained.copies = same | {identity(path): (model.DTYPES[dtype], now)}


def identity(path: str) -> tuple:
    """Which files a directory holds, whatever its name: an export is renamed once it is whole."""
    found = [os.stat(file) for file in weight_files(path)]
    return tuple((f.st_dev, f.st_ino, f.st_size, f.st_mtime_ns) for f in found)


def weight_files(path: str) -> list[str]:
    try:
        files = sorted(os.path.join(path, n) for n in os.listdir(path) if n.endswith(".safetensors"))
    except (FileNotFoundError, NotADirectoryError):
        raise TrainerError("not_found", f"{path} does not exist; allowed: an exported model directory") from None
    if not files:
        raise TrainerError("not_found", f"{path} has no *.safetensors; allowed: an exported model directory")
    return files


class Memory:
    """The weights that the trainer holds, as an export names, casts and merges them."""

    def __init__(self, trained: policy.Policy, dtype: torch.dtype):
        self.trained, self.dtype = trained, dtype

    def plan(self) -> Plan:
        """Shapes are enough: nothing is gathered."""
        shapes = {k.replace(lora.BASE, ""): v.shape for k, v in self.trained.tensors().items() if not k.endswith(lora.MATRICES)}
        empty = ((k, torch.empty(shape, dtype=self.dtype, device="meta")) for k, shape in shapes.items())
        return [(k, t.dtype, list(t.shape)) for k, t in self._named(empty)]

    def tensors(self, device: torch.device) -> Iterator[wire.Named]:
        """A layer at a time, gathered tensor by tensor by all ranks."""
        yield from self._named((k, t.to(device=device, dtype=self.dtype)) for k, t in self.trained.exported())

    def _named(self, state: Iterable[wire.Named]) -> Iterator[wire.Named]:
        """With the names and shapes of a model directory, which for some architectures are not those in memory (experts
        are fused there). Conversions stay within a layer, which is what stands up to the first number of a name."""
        for _, layer in itertools.groupby(state, key=lambda named: re.match(r"(.*?\.\d+\.)?", named[0])[0]):
            yield from revert_weight_conversion(self.trained.net, dict(layer)).items()


class Folder:
    """The weights of a model directory, read by the first rank."""

    def __init__(self, path: str):
        self.files = weight_files(path)

    def plan(self) -> Plan:
        return [entry for file in self.files for entry in self._read(file, _header)]

    def tensors(self, device: torch.device) -> Iterator[wire.Named]:
        for file in self.files:
            yield from self._read(file, lambda f, name: (name, f.get_tensor(name).to(device)))

    @staticmethod
    def _read(file: str, entry: Callable) -> Iterator:
        try:
            with safe_open(file, framework="pt") as f:
                for name in f.keys():  # noqa: SIM118
                    yield entry(f, name)
        except (SafetensorError, KeyError) as e:
            raise TrainerError("corrupt", f"{file} cannot be read: {e}") from e
        except OSError as e:  # no other rank waits in a collective for it: an ordinary failure
            raise TrainerError("internal", f"{file} cannot be read: {e}") from e


def _header(f, name: str) -> tuple[str, torch.dtype, list[int]]:
    part = f.get_slice(name)
    return name, DTYPES[part.get_dtype()], part.get_shape()


def source(trained: policy.Policy, path: str) -> Memory | Folder:
    """Where the weights of a directory come from; what it says holds for the first rank."""
    known = getattr(trained, "copies", {}).get(identity(path))
    if known is not None and known[1] == policy.stamp(trained):
        return Memory(trained, known[0])
    return Folder(path)


def plan(trainer, path: str) -> dict:
    """What will be sent for a directory, in order, and its hash; the first rank's alone."""
    trainer.require()
    return _told(source(trainer.policy, path).plan())


def _told(tensors: Plan) -> dict:
    told = [{"name": n, "dtype": str(d).removeprefix("torch."), "shape": s} for n, d, s in tensors]
    return {"tensors": told, "sha256": hashlib.sha256(json.dumps(told).encode()).hexdigest()}


# --- sending ---


def send(trainer, path: str, plan_sha256: str, link: Link | None = None, alive: Callable[[], bool] = lambda: True) -> dict:
    """Sends the weights of a directory over a link, in the order of the plan; all ranks call it, the first with the link."""
    trainer.require()
    group, started, what = trainer.ranks, time.perf_counter(), None
    with group.together():
        if group.first:
            what = source(trainer.policy, path)
            if (found := _told(what.plan())["sha256"]) != plan_sha256:
                raise TrainerError("conflict", f"the plan of {path} is {found[:12]} by now, not {plan_sha256[:12]}; ask again")
    dtype = group.broadcast(what.dtype if isinstance(what, Memory) else None)
    sent, fault = 0, None
    if group.first:
        tensors = what.tensors(link.device)
        try:
            sent = link.send(wire.pack(tensors, link.limit), alive)
        except TrainerError as e:
            fault = e
    elif dtype is not None:
        tensors = Memory(trainer.policy, dtype).tensors(group.device)
    if dtype is not None and group.world > 1:
        for _ in tensors:
            pass  # the ranks that send nothing, and the first where it could not send on, take part in every gather
    with group.together():
        if fault is not None:
            raise fault
    return {"bytes": sent, "seconds": time.perf_counter() - started, "live": dtype is not None}
