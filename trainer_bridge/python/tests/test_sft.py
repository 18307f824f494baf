"""Supervised fine-tuning: it learns, only assistants' tokens, and all or nothing."""

import json
import math

import pytest
import torch
from conftest import conversation

from milepost_trainer import optim, sft
from milepost_trainer.errors import TrainerError


def config(**fields):
    return sft.SupervisedConfig(optimizer=optim.OptimizerConfig(lr=1e-2), **{"batch_episodes": 8, **fields})


def test_loss_falls_and_progress_counts(tiny, demos):
    seen = []
    sft.run(tiny, demos, config(steps=15, warmup=3, schedule="linear", final_lr=0.0), seen.append, lambda: True)
    assert [p["step"] for p in seen] == list(range(1, 16)) and all(p["steps"] == 15 for p in seen)
    assert seen[0]["loss"] == pytest.approx(math.log(tiny.net.config.vocab_size), abs=0.5)  # untrained: near uniform
    assert seen[-1]["loss"] < 0.6 * seen[0]["loss"]
    assert seen[0]["lr"] == pytest.approx(1e-2 / 3) and seen[3]["lr"] == pytest.approx(1e-2) and seen[-1]["lr"] == 0
    assert seen[-1]["eta_seconds"] == 0 and seen[-1]["tokens"] > seen[-1]["trained_tokens"] > 0


def test_epochs_cover_every_demonstration(tiny, demos):
    seen = []
    sft.run(tiny, demos, config(epochs=2, batch_episodes=10), seen.append, lambda: True)
    assert len(seen) == 6  # 24 demonstrations in 3 steps, twice
    assert sorted(i for part in list(sft.order(24, 10, 3, 0)) for i in part) == list(range(24))


def test_micro_batches_do_not_change_the_result(model_dir, demos):
    from milepost_trainer.trainer import Trainer

    results = []
    for micro in (64, 10_000):
        t = Trainer()
        t.init(model_dir, "", "float32", 1)
        seen = []
        sft.run(t, demos, config(steps=3, micro_tokens=micro), seen.append, lambda: True)
        results.append([p["loss"] for p in seen])
    assert results[0] == pytest.approx(results[1], rel=1e-4)


def test_what_is_not_trained_does_not_matter(tiny, demos, tmp_path):
    """Only assistant tokens have a target: the last observation of a conversation changes no loss."""
    losses = []
    for tail in ("a", "completely other text"):
        path = tmp_path / "d.jsonl"
        messages = [*conversation(1), {"role": "tool", "content": tail}]
        path.write_text(json.dumps({"id": "d", "messages": messages}) + "\n")
        data = sft.encode(tiny, str(path), 0)
        losses.append((data.ids[0].tolist(), data.wanted[0].tolist()))
    assert losses[0] == losses[1]


def test_cancel_and_failure_leave_the_weights(tiny, demos, monkeypatch):
    before = {k: v.clone() for k, v in tiny.net.state_dict().items()}
    steps = []
    with pytest.raises(TrainerError) as e:
        sft.run(tiny, demos, config(steps=10), steps.append, lambda: len(steps) < 2)
    assert e.value.kind == "canceled" and len(steps) == 2
    assert all(torch.equal(v, before[k]) for k, v in tiny.net.state_dict().items())
    with pytest.raises(RuntimeError):
        sft.run(tiny, demos, config(steps=10), lambda p: (_ for _ in ()).throw(RuntimeError("stop")), lambda: True)
    assert all(torch.equal(v, before[k]) for k, v in tiny.net.state_dict().items())


def test_long_demonstrations_are_left_out_and_counted(tiny, demos, tmp_path):
    path = tmp_path / "d.jsonl"
    long = [*conversation(1)[:-1], {"role": "assistant", "content": "word " * 600}]
    path.write_text("".join(json.dumps({"id": f"d{i}", "messages": m}) + "\n" for i, m in enumerate([long, conversation(2)])))
    seen = []
    sft.run(tiny, str(path), config(steps=1), seen.append, lambda: True)
    assert seen[0]["left_out"] == 1 and seen[0]["demonstrations"] == 1
    with pytest.raises(TrainerError, match="all 2 are longer than 10 tokens"):
        sft.run(tiny, str(path), config(steps=1, max_tokens=10), seen.append, lambda: True)


def test_bad_configuration():
    with pytest.raises(TrainerError, match="schedule is 'step'; allowed: cosine, linear, constant"):
        config(schedule="step")
    with pytest.raises(TrainerError, match="epochs is 0"):
        config(epochs=0)
