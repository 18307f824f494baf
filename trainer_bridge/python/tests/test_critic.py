"""The value head: its loss by hand, its gradient, what it learns, its checkpoints, and that nothing is left out silently."""

import json
from dataclasses import replace

import pytest
import torch
from conftest import rows_for, write_batch
from safetensors.torch import load_file
from test_trainer import LENGTHS, config, same, update, weights

from milepost_trainer import checkpoint, critic, optim
from milepost_trainer.errors import TrainerError
from milepost_trainer.trainer import Trainer


@pytest.fixture
def headed(model_dir):
    t = Trainer()
    t.init(model_dir, "", "float32", 5, value_head=True)
    return t


def valued(t, tmp_path, rows, returns=lambda i: 0.7):
    """The rows with the head's values of now and these returns; returns a number a row."""
    path = tmp_path / "ask.arrow"
    asked = t.values(str(path), write_batch(path, rows), 60)
    out = []
    for i, (r, v) in enumerate(zip(rows, asked, strict=True)):
        v = iter(v.tolist())
        values = [next(v) if m else 0.0 for m in r["mask"]]
        out.append(r | {"values": values, "returns": [returns(i) if m else 0.0 for m in r["mask"]]})
    return out


def value_config(lr=1e-2, loss_fields=None, clip_norm=0.0, value=None, **fields):
    c = config(loss_fields, lr=lr, value=critic.ValueConfig(**(value or {})), **fields)
    return replace(c, optimizer=optim.OptimizerConfig(lr=lr, clip_norm=clip_norm))


def random_head(t, seed=3):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        t.head.weight.copy_(torch.randn(t.head.weight.shape, generator=generator) * 10)
        t.head.bias.fill_(0.2)


# --- the rule ---


def test_loss_by_hand():
    values = torch.tensor([0.0, 1.0, -1.0, 0.2], dtype=torch.float64, requires_grad=True)
    returns = torch.tensor([1.0, 1.0, 0.5, 0.2], dtype=torch.float64)
    got, clipped = critic.loss(critic.ValueConfig(clip=0.5), values, torch.zeros(4, dtype=torch.float64), returns)
    assert got.tolist() == pytest.approx([0.5, 0.125, 1.125, 0.0], abs=1e-12)
    assert clipped.tolist() == [False, True, False, False]
    got.sum().backward()
    assert values.grad.tolist() == pytest.approx([-1.0, 0.0, -1.5, 0.0], abs=1e-12)  # none where the clipped side is taken
    got, clipped = critic.loss(critic.ValueConfig(clip=0.0), values, torch.zeros(4, dtype=torch.float64), returns)
    assert got.tolist() == pytest.approx([0.5, 0.0, 1.125, 0.0], abs=1e-12) and not clipped.any()


def test_explained_variance_by_hand():
    returns = torch.tensor([0.0, 1.0, 1.0, 0.0])
    assert critic.explained_variance(returns, returns) == pytest.approx(1)
    assert critic.explained_variance(torch.full((4,), 0.3), returns) == pytest.approx(0)  # a constant explains nothing
    assert critic.explained_variance(torch.tensor([0.25, 0.75, 0.75, 0.25]), returns) == pytest.approx(0.75)
    assert critic.explained_variance(1 - returns, returns) == pytest.approx(-3)
    assert critic.explained_variance(returns, torch.ones(4)) is None


def test_the_loss_gradient_is_that_of_finite_differences():
    generator = torch.Generator().manual_seed(1)
    values, old, returns = (torch.randn(40, generator=generator, dtype=torch.float64) for _ in range(3))
    values.requires_grad_()
    assert torch.autograd.gradcheck(lambda v: critic.loss(critic.ValueConfig(), v, old, returns)[0], (values,))


@pytest.mark.parametrize("width", [16, 2048])
def test_a_step_moves_values_by_about_lr_at_any_width(width):
    hidden = torch.randn(64, width, generator=torch.Generator().manual_seed(2)) + 0.5
    head = critic.ValueHead(width)
    optimizer = torch.optim.AdamW(head.parameters(), lr=0.02)
    critic.loss(critic.ValueConfig(), head(hidden), torch.zeros(64), torch.ones(64))[0].mean().backward()
    optimizer.step()
    assert 0.02 < head(hidden).mean().item() < 0.04


# --- in the update ---


@pytest.mark.parametrize("detach", [False, True])
@pytest.mark.parametrize("micro", [60, 10_000])
def test_gradient_is_that_of_the_rule(headed, tmp_path, monkeypatch, detach, micro):
    """Against policy and value loss through a plain forward pass of each sequence, for trunk and head."""
    random_head(headed)
    rows = valued(headed, tmp_path, rows_for(headed, LENGTHS), returns=lambda i: 0.5 * i)
    c = value_config(value={"coef": 0.3, "detach": detach, "clip": 0.4}, micro_tokens=micro)
    for r in rows:  # as if the head had moved on: some tokens leave the clip range
        r["values"] = [v + (0.6 if k % 3 == 0 else 0.1) for k, v in enumerate(r["values"])]
    step = optim.step
    got = {}

    def keep(net, optimizer, clip_norm, value, head, **_):
        got.update({f"head.{n}": p.grad.clone() for n, p in head.named_parameters()})
        got.update({n: p.grad.clone() for n, p in net.named_parameters()}, loss=value)
        raise TrainerError("canceled", "enough")

    monkeypatch.setattr(optim, "step", keep)
    with pytest.raises(TrainerError, match="enough"):
        update(headed, tmp_path, rows, c)
    monkeypatch.setattr(optim, "step", step)
    assert all(p.grad is None for m in (headed.net, headed.head) for p in m.parameters())

    count = sum(sum(r["mask"]) for r in rows)
    total = 0
    for r in rows:
        s, m = torch.tensor(r["tokens"]), torch.tensor(r["mask"])
        hidden = headed.net.model(input_ids=s[None], use_cache=False).last_hidden_state[0][:-1]
        logprob = headed.net.lm_head(hidden).log_softmax(-1).gather(1, s[1:, None])[:, 0][m[1:]]
        hidden = (hidden.detach() if detach else hidden)[m[1:]]
        v = hidden @ headed.head.weight / 32 + headed.head.bias
        old, ret = torch.tensor(r["values"])[m], torch.tensor(r["returns"])[m]
        near = torch.minimum(torch.maximum(v, old - 0.4), old + 0.4)
        total = total + 0.3 * 0.5 * torch.maximum((v - ret) ** 2, (near - ret) ** 2).sum() / count
        total = total - ((logprob - logprob.detach()).exp() * torch.tensor(r["advantages"])[m]).sum() / count
    total.backward()
    assert got["loss"] == pytest.approx(total.item(), abs=1e-5)
    for name, p in [*headed.net.named_parameters(), *((f"head.{n}", p) for n, p in headed.head.named_parameters())]:
        assert torch.allclose(got[name], p.grad, atol=1e-5), name


def test_detached_the_policy_trains_as_without_a_head(headed, tiny, tmp_path):
    random_head(headed)
    rows = rows_for(tiny, LENGTHS)
    for i, fields in enumerate(({}, {"epochs": 2, "minibatches": 2})):
        with_head = value_config(value={"detach": True}, clip_norm=0.1, **fields)
        m = update(headed, tmp_path, valued(headed, tmp_path, rows), with_head, f"b{i}")
        plain = update(tiny, tmp_path, rows, value_config(clip_norm=0.1, **fields), f"b{i}")
        assert same(weights(headed), weights(tiny)) and m["grad_norm"] == plain["grad_norm"]
        assert "value_loss" not in plain and m["loss"] == pytest.approx(plain["loss"] + 0.1 * m["value_loss"], abs=1e-6)


def test_a_fresh_head_is_silent(headed, tiny, tmp_path):
    rows = rows_for(tiny, LENGTHS)
    asked = valued(headed, tmp_path, rows)
    assert all(v == 0 for r in asked for v in r["values"])
    m = update(headed, tmp_path, asked, value_config())
    update(tiny, tmp_path, rows, value_config())
    assert same(weights(headed), weights(tiny))  # the head's weights are 0, so nothing reaches the trunk yet
    assert m["value_loss"] == pytest.approx(0.5 * 0.49, abs=1e-6) and m["explained_variance"] is None
    assert headed.head.bias.item() == pytest.approx(2e-2, rel=1e-3)  # AdamW's first step is its own learning rate


def test_values_are_those_of_a_plain_pass(headed, tmp_path):
    random_head(headed)
    rows = rows_for(headed, LENGTHS)
    rows[2]["mask"] = [False] * len(rows[2]["mask"])
    before = weights(headed)
    path = tmp_path / "b.arrow"
    got = headed.values(str(path), write_batch(path, rows), 50)
    assert [len(v) for v in got] == [sum(r["mask"]) for r in rows] and len(got[2]) == 0
    for r, v in zip(rows, got, strict=True):
        s, m = torch.tensor(r["tokens"]), torch.tensor(r["mask"])
        with torch.no_grad():
            hidden = headed.net.model(input_ids=s[None], use_cache=False).last_hidden_state[0][:-1]
            want = (hidden @ headed.head.weight / 32 + headed.head.bias)[m[1:]]
        assert torch.allclose(v, want, atol=1e-5)
    assert same(before, weights(headed)) and headed.updates == 0


def test_it_learns_a_constant_return(headed, tmp_path):
    rows = rows_for(headed, LENGTHS, advantage=lambda _: 0.0)
    losses = []
    for i in range(80):
        c = value_config(lr=1e-4, value={"lr": 0.05, "coef": 1.0})
        losses.append(update(headed, tmp_path, valued(headed, tmp_path, rows), c, f"b{i}")["value_loss"])
    assert losses[0] == pytest.approx(0.245, abs=1e-6) and losses[-1] < 1e-3
    values = torch.tensor([v for r in valued(headed, tmp_path, rows) for v, m in zip(r["values"], r["mask"], strict=True) if m])
    assert (values - 0.7).abs().max() < 0.1


def test_it_learns_what_tells_sequences_apart(headed, tmp_path):
    rows = rows_for(headed, LENGTHS, advantage=lambda _: 0.0)
    explained = []
    for i in range(60):
        c = value_config(lr=3e-3, value={"lr": 0.03, "coef": 1.0})
        m = update(headed, tmp_path, valued(headed, tmp_path, rows, lambda i: float(i % 2)), c, f"b{i}")
        explained.append(m["explained_variance"])
    assert explained[0] == pytest.approx(0) and explained[-1] > 0.8


def test_clipping_is_counted(headed, tmp_path):
    c = value_config(lr=1e-4, value={"lr": 0.1, "clip": 0.05, "coef": 1.0}, epochs=4)
    m = update(headed, tmp_path, valued(headed, tmp_path, rows_for(headed, LENGTHS), lambda _: 5.0), c)
    assert 0.6 < m["value_clipfrac"] <= 0.75  # the first pass moves nothing, the later ones are past the range


def test_an_undone_update_leaves_the_head_as_it_was(headed, tmp_path, monkeypatch):
    rows = rows_for(headed, LENGTHS)
    random_head(headed)
    before = {k: v.clone() for k, v in headed.head.state_dict().items()}
    real, calls = optim.step, [0]

    def step(*a, **k):
        calls[0] += 1
        if calls[0] == 2:
            raise TrainerError("internal", "boom")
        return real(*a, **k)

    monkeypatch.setattr(optim, "step", step)
    with pytest.raises(TrainerError, match="boom"):
        update(headed, tmp_path, valued(headed, tmp_path, rows), value_config(minibatches=2))
    assert same(before, headed.head.state_dict()) and headed.updates == 0
    monkeypatch.undo()
    bad = valued(headed, tmp_path, rows, lambda _: 1e30)
    with pytest.raises(TrainerError, match="must all be finite"):
        update(headed, tmp_path, bad, value_config(), "bad")
    assert same(before, headed.head.state_dict()) and headed.head.weight.grad is None


def test_head_and_columns_go_together(headed, tiny, tmp_path):
    rows = rows_for(tiny, LENGTHS)
    with_values = valued(headed, tmp_path, rows)
    for t, r, words in ((headed, rows, "no values and returns"), (tiny, with_values, "there is no value head")):
        before = weights(t)
        with pytest.raises(TrainerError, match=words) as e:
            update(t, tmp_path, r, value_config())
        assert e.value.kind == "invalid" and same(before, weights(t)) and t.updates == 0
    with pytest.raises(TrainerError, match="there is no value head"):
        tiny.values("x", "y", 10)
    with pytest.raises(TrainerError, match="micro_tokens is 0"):
        headed.values("x", "y", 0)


@pytest.mark.parametrize(
    ("fields", "words"),
    [({"lr": 0.0}, "value.lr is 0.0"), ({"coef": -1.0}, "value.coef is -1.0"), ({"clip": float("nan")}, "value.clip is nan")],
)
def test_bad_configuration(fields, words):
    with pytest.raises(TrainerError, match=words):
        critic.ValueConfig(**fields)


def test_bfloat16_keeps_values_in_float32(model_dir, tmp_path):
    t = Trainer()
    t.init(model_dir, "", "bfloat16", 1, value_head=True)
    random_head(t)
    rows = valued(t, tmp_path, rows_for(t, LENGTHS))
    assert any(v != float(torch.tensor(v).bfloat16()) for r in rows for v in r["values"])
    m = update(t, tmp_path, rows, value_config())
    assert m["value_loss"] > 0 and t.head.weight.dtype == torch.float32


# --- checkpoints ---


def test_a_checkpoint_goes_on_identically(headed, tmp_path):
    rows, c = rows_for(headed, LENGTHS), value_config(minibatches=2, value={"lr": 0.02})
    update(headed, tmp_path, valued(headed, tmp_path, rows), c, "b1")
    checkpoint.save(headed, str(tmp_path / "c"))
    assert json.loads((tmp_path / "c" / "trainer.json").read_text())["value_head"] is True
    second = valued(headed, tmp_path, rows)
    m = update(headed, tmp_path, second, c, "b2")
    other = Trainer()
    checkpoint.load(other, str(tmp_path / "c"), "", value_head=True)
    assert valued(other, tmp_path, rows) == second
    again = update(other, tmp_path, second, c, "b2")
    assert same(weights(headed), weights(other)) and same(headed.head.state_dict(), other.head.state_dict())
    assert m["value_loss"] == again["value_loss"] and m["explained_variance"] == again["explained_variance"]


def test_a_head_is_neither_lost_nor_made_silently(headed, tiny, tmp_path):
    rows = rows_for(tiny, LENGTHS)
    update(tiny, tmp_path, rows, value_config(), "b1")
    checkpoint.save(tiny, str(tmp_path / "without"))
    checkpoint.save(headed, str(tmp_path / "with"))
    assert json.loads((tmp_path / "without" / "trainer.json").read_text())["value_head"] is False
    t = Trainer()
    for name, wanted, words in (("without", True, "holds no value head"), ("with", False, "holds a value head, which")):
        with pytest.raises(TrainerError, match=words) as e:
            checkpoint.load(t, str(tmp_path / name), "", value_head=wanted)
        assert e.value.kind == "invalid" and t.net is None
    checkpoint.load(t, str(tmp_path / "without"), "", value_head=True, fresh_value_head=True)
    assert t.updates == 1 and t.head.weight.abs().sum() == 0
    checkpoint.save(t, str(tmp_path / "before its first step"))
    checkpoint.load(t, str(tmp_path / "before its first step"), "", value_head=True)
    # The policy's optimizer goes on: with the head detached, the next update is that of the trainer without one.
    update(t, tmp_path, valued(t, tmp_path, rows), value_config(value={"detach": True}), "b2")
    update(tiny, tmp_path, rows, value_config(), "b2")
    assert same(weights(t), weights(tiny))
    checkpoint.save(t, str(tmp_path / "again"))
    checkpoint.load(Trainer(), str(tmp_path / "again"), "", value_head=True)


def test_exports_hold_no_head(headed, tiny, tmp_path):
    random_head(headed)
    digest, _ = checkpoint.export(headed, str(tmp_path / "x"), "")
    plain, _ = checkpoint.export(tiny, str(tmp_path / "y"), "")
    assert digest == plain and set(load_file(tmp_path / "x" / "model.safetensors")) == set(tiny.net.state_dict())
