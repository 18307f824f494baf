"""A process that receives weights as vLLM's worker does with milepost_vllm's engine, for test_transfer.py.

    receiver.py PORT GROUP LIMIT TIMEOUT [kill|stop]

Each line of the input names a plan and a file; once the tensors have arrived they are written there, and "received" is
printed. With a fault the process kills or stops itself at its third buffer.
"""

import json
import os
import signal
import sys

import torch
from safetensors.torch import save_file

from milepost_vllm import wire


def main(port: str, group: str, limit: str, timeout: str, fault: str = "") -> None:
    joined = wire.join(wire.store("127.0.0.1", int(port), float(timeout)), group, 1, 2, "127.0.0.1", float(timeout))
    buffers = 0

    def get(buffer: torch.Tensor) -> None:
        nonlocal buffers
        wire.broadcast(joined, buffer, float(timeout))
        buffers += 1
        if buffers == 3 and fault:
            os.kill(os.getpid(), signal.SIGKILL if fault == "kill" else signal.SIGSTOP)

    for line in sys.stdin:
        asked = json.loads(line)
        plan = asked["tensors"]
        fields = [t["name"] for t in plan], [getattr(torch, t["dtype"]) for t in plan], [t["shape"] for t in plan]
        got = [named for part in wire.receive(*fields, int(limit), "cpu", get) for named in part]
        save_file({name: t.clone() for name, t in got}, asked["out"])
        print("received", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
