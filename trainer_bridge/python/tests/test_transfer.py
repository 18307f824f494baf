"""The trainer's end of a weight transfer, against a receiver in a process of its own that plays vLLM's worker; and NCCL's
calls, against a library that notes them. That a real vLLM takes the weights is shown by the end-to-end tests in Go."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from conftest import rows_for, write_batch
from safetensors.torch import load_file
from test_ranks import launch
from test_routing import FAMILIES, write_model

from milepost_trainer import checkpoint, lora, loss, nccl, optim, sft, transfer
from milepost_trainer.errors import TrainerError
from milepost_trainer.options import Options
from milepost_trainer.trainer import Trainer, UpdateConfig
from milepost_vllm import wire

HERE = Path(__file__).parent
WAIT = 20.0  # of a healthy transfer, on a busy machine
LIMIT = 4096  # bytes of a buffer: many parts


def offer(links: transfer.Links, timeout=WAIT, replica="r0", **fields) -> dict:
    given = {"backend": "gloo", "host": "127.0.0.1", "port": 0, "workers": 1, "buffer_bytes": LIMIT}
    return links.open(replica=replica, timeout_seconds=timeout, **given | fields)


class Receiver:
    """A process that joins a group and receives the plans it is told; `fault` says what befalls it at the third buffer."""

    def __init__(self, invitation: dict, fault=""):
        argv = [
            sys.executable,
            str(HERE / "receiver.py"),
            str(invitation["port"]),
            invitation["group"],
            str(LIMIT),
            str(WAIT),
            fault,
        ]
        env = os.environ | {"PYTHONPATH": str(HERE.parent)}
        self.process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def expect(self, plan: dict, out: Path) -> None:
        self.process.stdin.write(json.dumps({"tensors": plan["tensors"], "out": str(out)}) + "\n")
        self.process.stdin.flush()

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def rig(tiny):
    """A trainer, its links, and receivers that end with the test."""
    links, receivers = transfer.Links(tiny.ranks.device), []

    def receiver(invitation, fault=""):
        receivers.append(Receiver(invitation, fault))
        return receivers[-1]

    yield tiny, links, receiver
    for r in receivers:
        r.end()


def send(trainer, links, number: int, receiver: Receiver, path: str, out: Path) -> dict:
    """Sends a directory and returns what came of it; the tensors that arrived are in `out`."""
    plan = transfer.plan(trainer, path)
    receiver.expect(plan, out)
    done = transfer.send(trainer, path, plan["sha256"], links.get(number))
    assert receiver.process.stdout.readline() == "received\n"
    return done


def step(trainer: Trainer, tmp_path: Path, name: str) -> None:
    sha = write_batch(tmp_path / name, rows_for(trainer, [12, 20], shift=0.1))
    config = UpdateConfig(loss=loss.LossConfig(), optimizer=optim.OptimizerConfig(lr=1e-2, clip_norm=1.0))
    trainer.update(name, str(tmp_path / name), sha, config)


def equal(a: Path, b: Path) -> bool:
    a, b = load_file(a), load_file(b)
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) and a[k].dtype == b[k].dtype for k in a)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "adapter", "qwen3_moe", "mixtral", "deepseek_v3"])
def test_what_arrives_is_what_the_directory_holds(rig, tmp_path, model_dir, kind):
    """An adapter is merged into it, and experts, which are fused in memory, stand there one by one."""
    trainer, links, receiver = rig
    if kind == "adapter":
        trainer.init(model_dir, "", "float32", 5, options=Options(lora=lora.LoraConfig(rank=4, alpha=8.0)))
        step(trainer, tmp_path, "b0")
    elif kind in FAMILIES:
        trainer.init(write_model(tmp_path / "mixture", model_dir, kind), "", "float32", 5)
    invitation = offer(links)
    worker, out, exported = receiver(invitation), tmp_path / "got.safetensors", str(tmp_path / "v1")
    checkpoint.export(trainer, exported, "bfloat16" if kind == "bfloat16" else "float32")
    Path(exported).rename(tmp_path / "renamed")  # as a run does once an export is whole
    exported, files = str(tmp_path / "renamed"), tmp_path / "renamed" / "model.safetensors"
    done = send(trainer, links, invitation["link"], worker, exported, out)
    assert done["live"] and equal(files, out) and done["bytes"] == sum(t.nbytes for t in load_file(files).values())
    step(trainer, tmp_path, "b1")  # the trainer goes on: now only the files hold these weights
    done = send(trainer, links, invitation["link"], worker, exported, out)
    assert not done["live"] and equal(files, out)


def test_every_change_of_the_weights_is_seen(tiny, tmp_path, demos):
    path = str(tmp_path / "out")

    def live() -> bool:
        return isinstance(transfer.source(tiny.policy, path), transfer.Memory)

    config = sft.SupervisedConfig(optim.OptimizerConfig(1e-3), steps=1, batch_episodes=2)
    changes = {
        "update": lambda: step(tiny, tmp_path, "b1"),
        "supervised": lambda: sft.run(tiny, demos, config, lambda _: None, lambda: True),
        "load": lambda: (checkpoint.save(tiny, str(tmp_path / "ck")), checkpoint.load(tiny, str(tmp_path / "ck"), "")),
        "init": lambda: tiny.init(path, "", "float32", 1),
    }
    for name, change in changes.items():
        checkpoint.export(tiny, path, "")
        assert live(), name
        tiny.score([[1, 2, 3]], 1.0, False)
        checkpoint.export(tiny, str(tmp_path / "other"), "")
        assert live(), f"{name}: reading and another export change nothing"
        change()
        assert not live(), name


def test_a_damaged_copy_is_sent_as_it_is(rig, tmp_path):
    """The canary is to find it; what the trainer holds must not hide it."""
    trainer, links, receiver = rig
    checkpoint.export(trainer, str(tmp_path / "v1"), "")
    (tmp_path / "v1").rename(tmp_path / "v2")
    files = tmp_path / "v2" / "model.safetensors"
    data = bytearray(files.read_bytes())
    data[-5] ^= 0x40
    files.write_bytes(data)
    invitation = offer(links)
    assert not send(trainer, links, invitation["link"], receiver(invitation), str(tmp_path / "v2"), tmp_path / "got")["live"]
    assert equal(files, tmp_path / "got")


@pytest.mark.parametrize("fault", ["kill", "stop", "absent"])
def test_a_replica_that_is_lost_costs_its_link_alone(rig, tmp_path, model_dir, fault):
    trainer, links, receiver = rig
    lost = offer(links, replica="lost")
    other = offer(links, replica="other")
    workers = [] if fault == "absent" else [receiver(lost, fault)]
    well, plan = receiver(other), transfer.plan(trainer, model_dir)
    for w in workers:
        w.expect(plan, tmp_path / "lost")
        links.get(lost["link"]).joined.result(WAIT)
    links.get(lost["link"]).timeout = WAIT if fault == "kill" else 3.0
    started = time.monotonic()
    with pytest.raises(TrainerError, match="broke off after") as e:
        transfer.send(trainer, model_dir, plan["sha256"], links.get(lost["link"]))
    assert e.value.kind == "unavailable" and time.monotonic() - started < 10
    with pytest.raises(TrainerError, match="there is no link"):
        links.get(lost["link"])
    send(trainer, links, other["link"], well, model_dir, tmp_path / "got")
    for w in workers:
        w.process.send_signal(signal.SIGCONT)
    again = offer(links, replica="lost")  # as after a restart
    send(trainer, links, again["link"], receiver(again), model_dir, tmp_path / "got")
    assert equal(Path(model_dir) / "model.safetensors", tmp_path / "got")


def test_a_caller_that_leaves_ends_the_transfer(rig, model_dir):
    trainer, links, receiver = rig
    invitation = offer(links)
    receiver(invitation)  # joins, and is told of no plan
    link = links.get(invitation["link"])
    link.joined.result(WAIT)
    started, plan = time.monotonic(), transfer.plan(trainer, model_dir)
    with pytest.raises(TrainerError, match="given up"):
        transfer.send(trainer, model_dir, plan["sha256"], link, lambda: time.monotonic() < started + 0.3)
    assert time.monotonic() - started < WAIT / 2


def test_what_is_refused(tiny, tmp_path, model_dir):
    links = transfer.Links(tiny.ranks.device)
    for text, call in {
        "backend is 'mpi'": lambda: offer(links, backend="mpi"),
        "no GPU": lambda: offer(links, backend="nccl"),
        "workers 0": lambda: offer(links, workers=0),
        "no store can be served": lambda: offer(links, port=1 << 16),
        "there is no link 7": lambda: links.get(7),
        "does not exist": lambda: transfer.plan(tiny, str(tmp_path / "none")),
        "has no *.safetensors": lambda: transfer.plan(tiny, str(tmp_path)),
        "ask again": lambda: transfer.send(tiny, model_dir, "0" * 64),
        "no model": lambda: transfer.plan(Trainer(), model_dir),
    }.items():
        with pytest.raises(TrainerError) as e:
            call()
        assert text in str(e.value)
    (tmp_path / "model.safetensors").write_bytes(b"no safetensors")
    with pytest.raises(TrainerError, match="cannot be read") as e:
        transfer.plan(tiny, str(tmp_path))
    assert e.value.kind == "corrupt"


def test_a_file_that_goes_is_an_ordinary_failure(tmp_path):
    gone = tmp_path / "model.safetensors"
    gone.write_bytes(b"")
    folder = transfer.Folder(str(tmp_path))
    gone.unlink()
    with pytest.raises(TrainerError, match="cannot be read") as e:
        list(folder.tensors(torch.device("cpu")))
    assert e.value.kind == "internal", "unavailable would be the link's"


def test_ranks_gather_what_the_first_sends(tmp_path, model_dir):
    init = {"path": model_dir, "reference": "", "dtype": "float32", "seed": 5}
    _, got = launch(2, [["init", init], ["sent", {"path": str(tmp_path / "v1")}]], tmp_path / "w")["results"]
    want = load_file(tmp_path / "v1" / "model.safetensors")
    assert got["live"] and got["failed"] == "unavailable" and got["scored"] == 3
    assert b"".join(t.numpy().tobytes() for t in (want[n] for n in got["names"])) == got["bytes"]


def test_parts_are_those_of_vllm():
    """Up to the tensor that brings them above the limit, as pack_tensors does it."""
    assert list(wire.parts([3, 3, 3, 20, 1], 6)) == [(0, 3), (3, 4), (4, 5)]
    assert list(wire.parts([], 6)) == []
    tensors = [(str(i), torch.arange(n, dtype=torch.uint8)) for i, n in enumerate([3, 3, 3, 20, 1])]
    assert [len(b) for b in wire.pack(iter(tensors), 6)] == [9, 20, 1]


class Library:
    """NCCL as far as the trainer calls it; it notes the calls."""

    def __init__(self):
        self.calls = []

    def ncclGetUniqueId(self, out):
        ctypes.memmove(out, bytes(range(128)), 128)
        return 0

    def __getattr__(self, name):
        def call(*args):
            self.calls.append((name, *(a.value if isinstance(a, ctypes.c_size_t) else a for a in args)))
            return 0

        return call


def test_nccl_is_called_as_vllms_engine_expects(monkeypatch):
    """Id, communicator as rank 0, the warm-up of one element, then bytes; a standstill aborts. The numbers need a GPU."""
    lib, device = Library(), torch.device("cpu")

    class Stream:
        cuda_stream = 5

        def __init__(self, *_):
            pass

        def wait_stream(self, _):
            pass

    class Event:
        ready = True

        def record(self, _):
            pass

        def query(self):
            return self.ready

    for name, fake in {"Stream": Stream, "Event": Event, "set_device": lambda _: None, "current_stream": lambda _: None}.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    unique = nccl.unique_id(lib)
    assert unique == bytes(range(128))
    c = nccl.Communicator(unique, 3, device, 1.0, lib)
    c.broadcast(torch.zeros(77, dtype=torch.uint8), 1.0)
    (init, size, given, rank), warm, sent = [x[1:] if x[0] == "ncclCommInitRank" else x for x in lib.calls]
    assert (size, bytes(given), rank) == (3, unique, 0) and init is not None
    assert warm[0] == "ncclAllReduce" and warm[3:6] == (1, nccl.FLOAT32, nccl.SUM)
    assert sent[0] == "ncclBroadcast" and sent[3:6] == (77, nccl.UINT8, 0)
    Event.ready = False
    with pytest.raises(TimeoutError):
        c.broadcast(torch.zeros(1, dtype=torch.uint8), 0.01)
    assert lib.calls[-1][0] == "ncclCommAbort"


@pytest.mark.skipif(not torch.cuda.is_available(), reason="NCCL needs a GPU, and this machine has none")
def test_nccl_joins_a_group_of_one():
    c = nccl.Communicator(nccl.unique_id(), 1, torch.device("cuda", 0), WAIT)
    c.broadcast(torch.arange(9, dtype=torch.uint8, device="cuda"), WAIT)
