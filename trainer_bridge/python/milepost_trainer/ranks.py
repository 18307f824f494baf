"""The processes of one trainer, and how they stay in step.

A trainer is one process, or as many as torchrun started (RANK, WORLD_SIZE). Rank 0 alone speaks gRPC; it announces every
call, and all ranks run it. One process is the same program: every function here is then a no-op.

Invariants. All ranks run the same calls in the same order and, inside a call, the same collectives in the same order.
What can fail on one rank alone (a file that only it cannot read) stands in `together`, which makes it fail on all. A
failure anywhere else leaves ranks waiting for each other, so it ends the process, torchrun ends the others, and the run
goes on from its last checkpoint.
"""

import contextlib
import datetime
import os
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from milepost_trainer.errors import TrainerError, as_trainer_error, invalid

# Ranks wait for the next call as long as rollouts take; a rank that died closes its connections and ends the wait.
PATIENCE = datetime.timedelta(days=30)


@dataclass
class Ranks:
    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    mesh: DeviceMesh | None = None  # one dimension over all ranks; None with one process
    control: dist.ProcessGroup | None = None  # gloo, for objects and small numbers

    @property
    def first(self) -> bool:
        return self.rank == 0

    def broadcast(self, value):
        """Rank 0's value, on every rank; it must be picklable."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.control)
        return box[0]

    def gather(self, value) -> list:
        """Every rank's value, in order of rank, on every rank."""
        if self.world == 1:
            return [value]
        out = [None] * self.world
        dist.all_gather_object(out, value, group=self.control)
        return out

    def sum(self, *values: float) -> list[float]:
        return self._reduce(values, dist.ReduceOp.SUM)

    def max(self, *values: float) -> list[float]:
        return self._reduce(values, dist.ReduceOp.MAX)

    def _reduce(self, values, op) -> list[float]:
        if self.world == 1:
            return list(values)
        t = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(t, op, group=self.control)
        return t.tolist()

    def share(self, streams: dict[int, Tensor]) -> dict[int, Tensor]:
        """Streams [K_i] on the CPU, each known by one rank under its index -> all of them, on every rank."""
        together: dict[int, Tensor] = {}
        for part in self.gather(streams):
            together |= part
        return together

    @contextlib.contextmanager
    def together(self):
        """Work without collectives that may fail on some ranks: afterwards it has failed on none or on all."""
        fault = None
        try:
            yield
        except Exception as e:
            fault = as_trainer_error(e)
            if self.world == 1:
                raise
        faults = self.gather(None if fault is None else (fault.kind, str(fault)))
        for rank, known in enumerate(faults):
            if known is not None:
                raise fault or TrainerError(known[0], f"rank {rank}: {known[1]}")


def start() -> Ranks:
    """Joins the process group that torchrun describes in the environment; alone where it describes none."""
    world = int(os.environ.get("WORLD_SIZE") or 1)
    if world == 1:
        # With its index, which torch.cuda.set_device asks for.
        return Ranks(
            device=torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
        )
    if "RANK" not in os.environ or "MASTER_ADDR" not in os.environ:
        raise invalid(f"WORLD_SIZE is {world} without RANK and MASTER_ADDR; allowed: the environment that torchrun sets")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK") or 0))
        torch.cuda.set_device(device)
    dist.init_process_group("gloo" if device.type == "cpu" else "nccl")
    mesh = init_device_mesh(device.type, (world,))
    return Ranks(dist.get_rank(), world, device, mesh, dist.new_group(backend="gloo", timeout=PATIENCE))


def stop(ranks: Ranks) -> None:
    if ranks.world > 1:
        dist.destroy_process_group()


def assign(lengths: list[int], world: int) -> list[list[int]]:
    """Indices of sequences for each rank, about equal in tokens: longest first, each to the rank with the fewest.

    It depends on the lengths alone, so every rank computes the same.
    """
    out: list[list[int]] = [[] for _ in range(world)]
    load = [0] * world
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        rank = min(range(world), key=lambda r: (load[r], r))
        out[rank].append(i)
        load[rank] += lengths[i]
    return out
