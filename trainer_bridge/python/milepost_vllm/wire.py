"""What goes over the wire between a trainer and one server, for both ends.

A group has the trainer as rank 0 and the server's workers behind it. They find each other through the trainer's TCPStore, under
a prefix of the group's own, so one port serves all groups. Weights travel as bytes: tensors in the order of a plan that
both ends know, packed until a buffer is exceeded. That rule is vLLM's own (packed_tensor.py), so that the trainer sends to its
NCCL engine in the same parts.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import timedelta

import torch
from torch import Tensor
from torch.distributed import BroadcastOptions, PrefixStore, ProcessGroupGloo, Store, TCPStore

Named = tuple[str, Tensor]


def store(host: str, port: int, timeout: float, serve: bool = False) -> TCPStore:
    """The trainer's store: served by it (port 0 = any free one), joined by servers."""
    return TCPStore(host, port, is_master=serve, wait_for_workers=False, timeout=timedelta(seconds=timeout))


def join(where: Store, group: str, rank: int, size: int, host: str, timeout: float) -> ProcessGroupGloo:
    """Joins a group, by the network interface of this host's address; fails where not all have come within timeout s."""
    options = ProcessGroupGloo._Options()
    options._timeout = timedelta(seconds=timeout)
    options._devices = [ProcessGroupGloo.create_device(hostname=host)]
    options._threads = 2
    return ProcessGroupGloo(PrefixStore(group, where), rank, size, options)


def broadcast(group: ProcessGroupGloo, buffer: Tensor, timeout: float, alive: Callable[[], bool] = lambda: True) -> None:
    """Rank 0's buffer to all. Fails after timeout s without an end, and as soon as `alive` says no; the group is then of no
    use any more."""
    options = BroadcastOptions()
    options.rootRank, options.rootTensor, options.timeout = 0, 0, timedelta(seconds=timeout)
    work, deadline, pause = group.broadcast([buffer], options), time.monotonic() + timeout, 1e-5
    while not work.is_completed():  # wait() could not be interrupted
        if time.monotonic() > deadline:
            raise TimeoutError(f"no progress for {timeout:g} s")
        if not alive():
            raise TimeoutError("given up")
        time.sleep(pause)
        pause = min(2 * pause, 1e-3)
    work.wait()


def parts(sizes: Iterable[int], limit: int) -> Iterator[tuple[int, int]]:
    """[start, end) of the tensors that travel together: up to the first that brings them above `limit` bytes."""
    start = total = end = 0
    for end, size in enumerate(sizes, 1):
        total += size
        if total > limit:
            yield start, end
            start, total = end, 0
    if end > start:
        yield start, end


def pack(tensors: Iterable[Named], limit: int) -> Iterator[Tensor]:
    """The bytes of the tensors, in the same parts."""
    held: list[Tensor] = []
    total = 0
    for _, t in tensors:
        held.append(t.contiguous().view(-1).view(torch.uint8))
        total += held[-1].numel()
        if total > limit:
            yield torch.cat(held) if len(held) > 1 else held[0]
            held, total = [], 0
    if held:
        yield torch.cat(held) if len(held) > 1 else held[0]


def receive(
    names: list[str], dtypes: list[torch.dtype], shapes: list[list[int]], limit: int, device, get: Callable[[Tensor], None]
) -> Iterator[list[Named]]:
    """The tensors of a plan, a part at a time; get fills a buffer [bytes] with what arrives. Each part has memory of its own."""
    sizes = [math.prod(s) * d.itemsize for s, d in zip(shapes, dtypes, strict=True)]
    for start, end in parts(sizes, limit):
        buffer = torch.empty(sum(sizes[start:end]), dtype=torch.uint8, device=device)
        get(buffer)
        yield [
            (names[i], part.view(dtypes[i]).view(shapes[i]))
            for i, part in zip(range(start, end), buffer.split(sizes[start:end]), strict=True)
        ]
