"""Two ranks are one: the same losses, gradients, weights, values and failures, and checkpoints that either writes and the
other reads. The ranks are real processes under torchrun, over gloo; the one is a process of its own, too."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import rows_for, write_batch
from safetensors.torch import load_file

from milepost_trainer import loss
from milepost_trainer.ranks import assign
from milepost_trainer.trainer import Trainer

LENGTHS = [20, 31, 12, 44, 25, 16, 90]
HERE = Path(__file__).parent


def launch(world: int, steps: list, directory: Path) -> dict:
    directory.mkdir()
    (directory / "steps.json").write_text(json.dumps(steps))
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)] if world > 1 else []
    done = subprocess.run(
        [sys.executable, *torchrun, str(HERE / "two_ranks.py"), str(directory / "steps.json"), str(directory / "out.pt")],
        env=os.environ | {"PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    return torch.load(directory / "out.pt", weights_only=False)


@pytest.fixture(scope="module")
def work(tmp_path_factory, model_dir, demos):
    """The batches, and what one process and two made of the same calls."""
    d = tmp_path_factory.mktemp("ranks")
    t = Trainer()
    t.init(model_dir, "", "float32", 5)
    plain = rows_for(t, LENGTHS, advantage=lambda i: 0.5 * i - 1, shift=0.2)
    valued = [
        r | {"values": [0.3 * m for m in r["mask"]], "returns": [(0.1 * i + 0.2) * m for m in r["mask"]]}
        for i, r in enumerate(plain)
    ]
    batches = {"plain": plain, "valued": valued, "one": rows_for(t, [30])}
    hashes = {n: write_batch(d / f"{n}.arrow", rows) for n, rows in batches.items()}
    sequences = [r["tokens"] for r in plain]

    def update(batch_id, name, **config):
        fields = {"batch_id": batch_id, "path": str(d / f"{name}.arrow"), "sha256": hashes[name], "config": config}
        return ["update", fields]

    def aggregated(name):
        return update(f"a {name}", "plain", micro_tokens=60, loss={"aggregate": name, "norm_length": 50.0})

    corrected = {"correction": "token_tis", "kl": "k3", "kl_coef": 0.1}

    def steps(out: Path) -> list:
        init = {"path": model_dir, "reference": model_dir, "dtype": "float32", "seed": 5}
        return [
            ["update", {"batch_id": "none", "path": "x", "sha256": "", "config": {}}],  # nothing is loaded
            ["init", init],
            ["score", {"sequences": sequences, "temperature": 1.0, "reference": False}],
            update("b1", "plain", micro_tokens=60),
            update("b2", "plain", micro_tokens=60, epochs=2, minibatches=2, loss=corrected),
            update("b3", "one"),  # fewer sequences than ranks
            update("b4", "plain", loss={"loss": "gspo", "reject": "geometric", "reject_low": 0.5, "reject_high": 1.5}),
            update("b1", "plain"),
            ["update", {"batch_id": "b5", "path": str(d / "missing.arrow"), "sha256": "", "config": {}}],
            ["supervised", {"path": demos}],
            update("b6", "plain"),
            ["score", {"sequences": sequences, "temperature": 0.7, "reference": True}],
            ["save", {"path": str(out / "checkpoint")}],
            update("b7", "plain"),
            ["export", {"path": str(out / "model"), "dtype": "float32"}],
            *(step for name in loss.ALLOWED["aggregate"] for step in (["init", init], aggregated(name))),
            ["init", init | {"value_head": True, "recompute": True}],
            update("v1", "valued", micro_tokens=50, loss={"aggregate": "seq-mean-token-sum"}),
            ["values", {"path": str(d / "plain.arrow"), "sha256": hashes["plain"], "micro_tokens": 50}],
            ["save", {"path": str(out / "valued")}],
        ]

    runs = {world: launch(world, steps(d / f"out{world}"), d / f"out{world}") for world in (1, 2)}
    return d, runs, update


def test_losses_and_metrics_agree(work):
    _, runs, _ = work
    for i, (one, two) in enumerate(zip(runs[1]["results"], runs[2]["results"], strict=True)):
        if isinstance(one, dict) and "error" in one:
            assert two["error"][0] == one["error"][0], (i, one, two)
            assert one["error"][1] in two["error"][1], (i, one, two)
        elif isinstance(one, dict):
            for name, value in one.items():
                if name not in ("seconds", "score_seconds", "tokens_per_second", "weights_sha256"):
                    assert two[name] == pytest.approx(value, abs=1e-5), (i, name)
        elif isinstance(one, list):
            for a, b in zip(one, two, strict=True):
                assert torch.allclose(a, b, atol=1e-5), i
    kinds = [r["error"][0] for r in runs[2]["results"] if isinstance(r, dict) and "error" in r]
    assert kinds == ["invalid", "conflict", "not_found"]
    for one, two in zip(runs[1]["progress"], runs[2]["progress"], strict=True):
        assert two["loss"] == pytest.approx(one["loss"], abs=1e-6) and two["trained_tokens"] == one["trained_tokens"]


def test_first_gradients_agree_to_a_millionth(work):
    """Of the first step of each trainer, before rounding has gone through AdamW; in all four aggregation modes."""
    _, runs, _ = work
    last = len(loss.ALLOWED["aggregate"]) + 1  # the first steps in each mode, then that with a value head
    for i in (0, *range(-last, 0)):
        one, two = runs[1]["gradients"][i], runs[2]["gradients"][i]
        assert set(one) == set(two) and any(n.startswith("head.") for n in one) == (i == -1)
        largest = max(g.abs().max().item() for g in one.values())
        for name, g in one.items():
            assert (g - two[name]).abs().max().item() <= 1e-6 * max(1.0, largest), (i, name)
        assert largest > 1e-3
    losses = [[r["loss"] for r in runs[w]["results"] if isinstance(r, dict) and "loss" in r] for w in (1, 2)]
    for i in (0, *range(-last, 0)):
        assert losses[0][i] == pytest.approx(losses[1][i], abs=1e-6)


def test_weights_stay_together(work):
    d, _, _ = work
    one, two = (load_file(d / f"out{w}" / "model" / "model.safetensors") for w in (1, 2))
    assert set(one) == set(two)
    for name, w in one.items():  # AdamW divides rounding by small gradients, so single weights may differ by a step
        assert (w - two[name]).norm() <= 1e-3 * w.norm(), name


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 1)])
def test_checkpoints_are_resharded(work, first, second):
    """1 -> 2 -> 1 and 2 -> 1 -> 2: the weights are equal to the last bit, and the next update is that of the writer."""
    d, runs, update = work

    def load(path, head):
        return ["load", {"path": str(path), "reference": "", "value_head": head}]

    names, steps, back = {"checkpoint": False, "valued": True}, [], []
    for name, head in names.items():
        again = d / f"again{first}{name}"
        steps += [load(d / f"out{first}" / name, head), ["save", {"path": str(again)}]]
        steps += [update("b7", "valued" if head else "plain"), load(again, head)]
        back.append(load(again, head))
    got = launch(second, steps, d / f"there{first}")["results"]
    home = launch(first, back, d / f"back{first}")["results"]
    saved = [r["weights_sha256"] for r in runs[first]["results"] if isinstance(r, dict) and "weights_sha256" in r]
    for i, want in enumerate((saved[1], saved[-1])):  # the saves; Inits stand before and between them
        assert {got[4 * i]["weights_sha256"], got[4 * i + 3]["weights_sha256"], home[i]["weights_sha256"]} == {want}
    (own,) = (r for r in runs[first]["results"] if isinstance(r, dict) and r.get("updates") == 6 and "loss" in r)
    assert got[2]["loss"] == pytest.approx(own["loss"], abs=1e-5)
    assert got[2]["grad_norm"] == pytest.approx(own["grad_norm"], rel=1e-4)


def test_a_rank_that_dies_ends_the_trainer(tmp_path):
    """Nobody waits for ever: torchrun ends the others, and the process that was started ends with an error."""
    script = tmp_path / "die.py"
    script.write_text(
        "import os, signal\nfrom milepost_trainer import calls, ranks\ngroup = ranks.start()\n"
        "if not group.first:\n    os.kill(os.getpid(), signal.SIGKILL)\ngroup.broadcast(('score', {}))\n"
        "group.gather(1)\nopen(os.environ['DONE'], 'w').close()\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(script)]
    env = os.environ | {"PYTHONPATH": str(HERE.parent), "OMP_NUM_THREADS": "1", "DONE": str(tmp_path / "done")}
    assert subprocess.run(command, env=env, capture_output=True, timeout=240).returncode != 0
    assert not (tmp_path / "done").exists()


@pytest.mark.parametrize("world", [1, 2, 3, 8])
def test_assign_gives_every_sequence_once_and_about_equal_loads(world):
    lengths = [7, 100, 3, 55, 55, 20, 1, 9, 64, 30]
    shares = assign(lengths, world)
    assert sorted(i for s in shares for i in s) == list(range(len(lengths))) and len(shares) == world
    loads = [sum(lengths[i] for i in s) for s in shares]
    assert max(loads) <= max(max(lengths), sum(lengths) / world * 4 / 3)
