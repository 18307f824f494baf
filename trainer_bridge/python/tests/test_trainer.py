"""The update step: the right gradient whatever the micro-batches, the right metrics, and all or nothing."""

import pytest
import torch
from conftest import rows_for, write_batch

from milepost_trainer import batch, loss, model, optim, pack, trainer
from milepost_trainer.errors import TrainerError

LENGTHS = [20, 31, 12, 44, 25, 16]


def config(loss_fields=None, lr=1e-2, **fields):
    return trainer.UpdateConfig(
        loss=loss.LossConfig(**(loss_fields or {})), optimizer=optim.OptimizerConfig(lr=lr, clip_norm=0), **fields
    )


def update(t, tmp_path, rows, c, name="b"):
    path = tmp_path / f"{name}.arrow"
    return t.update(name, str(path), write_batch(path, rows), c)


def weights(t):
    return {k: v.clone() for k, v in t.net.state_dict().items()}


def same(a, b):
    return all(torch.equal(a[k], b[k]) for k in a)


def gradients(t, rows, c, monkeypatch, tmp_path):
    """The gradient of the first optimizer step of an update."""
    kept = {}

    def step(net, optimizer, clip_norm, value, **_):
        kept.update({n: p.grad.clone() for n, p in net.named_parameters()}, loss=value)
        raise TrainerError("canceled", "enough")

    monkeypatch.setattr(optim, "step", step)
    with pytest.raises(TrainerError):
        update(t, tmp_path, rows, c)
    monkeypatch.undo()
    return kept


@pytest.mark.parametrize("aggregate", loss.ALLOWED["aggregate"])
@pytest.mark.parametrize("micro", [pytest.param(1, id="packing-is-no-packing"), pytest.param(45, id="accumulation-is-one-batch")])
def test_micro_batches_do_not_change_loss_and_gradient(tiny, tmp_path, monkeypatch, aggregate, micro):
    """Each sequence alone, or a few at a time, against all of them packed in one row."""
    rows = rows_for(tiny, LENGTHS, shift=0.3)
    fields = {"aggregate": aggregate, "norm_length": 50.0, "correction": "token_tis"}
    whole = gradients(tiny, rows, config(fields, micro_tokens=10_000), monkeypatch, tmp_path)
    parts = gradients(tiny, rows, config(fields, micro_tokens=micro), monkeypatch, tmp_path)
    assert whole["loss"] == pytest.approx(parts["loss"], abs=1e-6)
    for name in whole:
        if name != "loss":
            assert torch.allclose(whole[name], parts[name], atol=1e-6), name


def test_gradient_is_that_of_the_rule(tiny, tmp_path, monkeypatch):
    """Against loss.run_case's own arithmetic over padded arrays, through a plain forward pass."""
    rows = rows_for(tiny, LENGTHS, shift=0.4)
    fields = {"aggregate": "seq-mean-token-mean", "correction": "icepop", "icepop_low": 0.6}
    got = gradients(tiny, rows, config(fields, micro_tokens=60), monkeypatch, tmp_path)
    tiny.net.zero_grad()
    total = 0
    for r in rows:
        s, m = torch.tensor(r["tokens"]), torch.tensor(r["mask"])
        logprob = tiny.net(input_ids=s[None], use_cache=False).logits[0].log_softmax(-1)[:-1].gather(1, s[1:, None])[:, 0]
        logprob, m = logprob[m[1:]], m
        rho = (logprob.detach() - torch.tensor(r["logprobs"])[m]).exp()
        rho = rho * ((rho >= 0.6) & (rho <= 5))
        total = total - (rho * (logprob - logprob.detach()).exp() * torch.tensor(r["advantages"])[m]).mean() / len(rows)
    total.backward()
    assert got["loss"] == pytest.approx(total.item(), abs=1e-6)
    for n, p in tiny.net.named_parameters():
        assert torch.allclose(got[n], p.grad, atol=1e-6), n


def test_metrics_of_an_on_policy_update(tiny, tmp_path):
    rows = rows_for(tiny, LENGTHS)
    m = update(tiny, tmp_path, rows, config(micro_tokens=64))
    trained = sum(sum(r["mask"]) for r in rows)
    assert m["tokens"] == sum(LENGTHS) and m["trained_tokens"] == trained and m["sequences"] == 6
    assert m["logprob_gap_max"] < 1e-5 and m["kl_sampler"] < 1e-8 and m["clip_fraction"] == 0
    assert m["ratio_mean"] == pytest.approx(1) and m["optimizer_steps"] == 1 and m["updates"] == 1
    want = -sum(a for r in rows for a in r["advantages"]) / trained
    assert m["loss"] == pytest.approx(want, abs=1e-5) and m["advantage_mean"] == pytest.approx(-want, abs=1e-5)
    assert 0 < m["entropy"] < 6 and m["grad_norm"] > 0 and (m["version_min"], m["version_max"]) == (3, 3)


def test_gap_to_the_sampler_is_measured_and_corrected(tiny, tmp_path):
    m = update(tiny, tmp_path, rows_for(tiny, LENGTHS, shift=-0.5), config({"correction": "token_tis"}))
    assert m["logprob_gap_mean"] == pytest.approx(0.5, abs=1e-4) and m["logprob_gap_max"] == pytest.approx(0.5, abs=1e-4)
    assert m["correction_mean"] == pytest.approx(1.6487, abs=1e-3)  # exp(.5)
    assert m["kl_sampler"] == pytest.approx(0.14872, abs=1e-4)  # exp(.5) - 1 - .5


def test_several_steps_use_the_logprobs_of_the_start(tiny, tmp_path):
    m = update(tiny, tmp_path, rows_for(tiny, LENGTHS), config(epochs=3, minibatches=2))
    assert m["optimizer_steps"] == 6 and m["ratio_max"] > 1.01 > 0.99 > m["ratio_min"]
    assert m["logprob_gap_max"] < 1e-5 and m["clip_fraction"] > 0


def test_rejected_sequences_train_nothing(tiny, tmp_path):
    rows = rows_for(tiny, LENGTHS)
    for k in (1, 4):
        rows[k]["logprobs"] = [x - 0.4 if m else 0.0 for x, m in zip(rows[k]["logprobs"], rows[k]["mask"], strict=True)]
    m = update(tiny, tmp_path, rows, config({"reject": "sequence"}))
    assert m["rejected_sequences"] == 2
    assert m["trained_tokens"] == sum(sum(r["mask"]) for k, r in enumerate(rows) if k not in (1, 4))
    before = weights(tiny)
    far = rows_for(tiny, LENGTHS, shift=-1.0)
    m = update(tiny, tmp_path, far, config({"reject": "sequence"}), "all")
    assert m["rejected_sequences"] == 6 and m["optimizer_steps"] == 0 and m["loss"] == 0 and same(before, weights(tiny))


def test_kl_pulls_to_the_reference(model_dir, tmp_path):
    t = trainer.Trainer()
    t.init(model_dir, model_dir, "float32", 1)
    update(t, tmp_path, rows_for(t, LENGTHS), config(lr=3e-2), "away")
    kls = []
    for i in range(6):
        rows = rows_for(t, LENGTHS, advantage=lambda _: 0.0)
        m = update(t, tmp_path, rows, config({"kl": "k2", "kl_coef": 1.0}, lr=3e-3), f"back{i}")
        kls.append(m["kl_reference"])
    assert kls[0] > 1e-4 and kls[-1] < 0.5 * kls[0] and m["kl_loss"] == pytest.approx(m["kl_reference"], rel=1e-4)


@pytest.mark.parametrize(("size", "steps"), [(0, 2), (1, len(LENGTHS)), (len(LENGTHS) - 1, 2), (100, 1)])
def test_steps_by_the_size_of_the_batch(tiny, tmp_path, size, steps):
    m = update(tiny, tmp_path, rows_for(tiny, LENGTHS), config(minibatches=2, minibatch_sequences=size))
    assert m["optimizer_steps"] == steps


@pytest.mark.parametrize("fields", [{}, {"epochs": 2, "minibatches": 2}])
def test_numbers_that_are_not_finite_change_nothing(tiny, tmp_path, monkeypatch, fields):
    rows = rows_for(tiny, LENGTHS)
    update(tiny, tmp_path, rows, config(), "first")
    before, counted = weights(tiny), [0]
    real = pack.row_logprobs

    def poisoned(net, row, temperature=1.0, entropy=False):
        counted[0] += 1
        logprob, e = real(net, row, temperature, entropy)
        return (logprob * float("nan"), e) if torch.is_grad_enabled() and counted[0] > len(fields) + 1 else (logprob, e)

    monkeypatch.setattr(pack, "row_logprobs", poisoned)
    with pytest.raises(TrainerError, match="finite") as e:
        update(tiny, tmp_path, rows, config(**fields, micro_tokens=50), "second")
    assert e.value.kind == "internal" and (tmp_path / "second.arrow").exists()
    monkeypatch.undo()
    assert same(before, weights(tiny)) and tiny.updates == 1 and tiny.batch_ids == ["first"]
    assert all(p.grad is None for p in tiny.net.parameters())
    third = update(tiny, tmp_path, rows, config(), "third")  # goes on, the optimizer too
    assert third["updates"] == 2


@pytest.mark.parametrize("reject", ["none", "sequence", "geometric"])
@pytest.mark.parametrize("lost", [1, len(LENGTHS)])
def test_rejection_hides_no_number_that_is_not_finite(tiny, tmp_path, monkeypatch, reject, lost):
    rows, before = rows_for(tiny, LENGTHS), weights(tiny)
    real, spoilt = pack.row_logprobs, set(range(lost))

    def poisoned(net, row, temperature=1.0, entropy=False):
        logprob, e = real(net, row, temperature, entropy)
        bad = torch.tensor([m in spoilt for m in row.members])[row.sequence]
        return logprob.masked_fill(bad, float("nan")), e

    monkeypatch.setattr(pack, "row_logprobs", poisoned)
    with pytest.raises(TrainerError, match="finite") as e:
        update(tiny, tmp_path, rows, config({"reject": reject}), "b")
    assert e.value.kind == "internal" and same(before, weights(tiny)) and tiny.batch_ids == []


def test_an_undone_update_leaves_the_optimizer_as_it_was(model_dir, tmp_path, monkeypatch):
    results = []
    for fail in (False, True):
        t = trainer.Trainer()
        t.init(model_dir, "", "float32", 5)
        rows = rows_for(t, LENGTHS)
        update(t, tmp_path, rows, config(), "first")
        if fail:
            real, calls = optim.step, [0]

            def step(*a, real=real, calls=calls, **k):
                calls[0] += 1
                if calls[0] == 2:
                    raise TrainerError("internal", "boom")
                return real(*a, **k)

            monkeypatch.setattr(optim, "step", step)
            with pytest.raises(TrainerError, match="boom"):
                update(t, tmp_path, rows, config(minibatches=2), "failed")
            monkeypatch.undo()
        update(t, tmp_path, rows, config(), "second")
        results.append(weights(t))
    assert same(*results)


@pytest.mark.parametrize(
    ("bounds", "fields", "words"),
    [
        ({"max_gap": 0.2}, {}, r"row 2 \(episode 'e2'\), token 9.*guard\.max_gap is 0\.2"),
        ({"min_entropy": 100.0}, {}, r"mean entropy is \d.*guard\.min_entropy is 100"),
        ({"max_grad_norm": 1e-6}, {}, r"gradient norm is \d.*guard\.max_grad_norm is 1e-06"),
        ({"max_ratio": 1.0001}, {"minibatches": 3}, r"inverse, is \d.*guard\.max_ratio is 1\.0001"),
    ],
)
def test_a_guard_stops_the_update_before_it_changes_anything(tiny, tmp_path, bounds, fields, words):
    rows = rows_for(tiny, LENGTHS, shift=0.3)
    rows[2]["logprobs"][9] -= 3  # the farthest from the sampler
    update(tiny, tmp_path, rows, config(), "first")
    before = weights(tiny)
    wide = trainer.GuardConfig(max_gap=10, max_ratio=1e6, min_entropy=1e-6, max_grad_norm=1e6)
    with pytest.raises(TrainerError, match=words) as e:
        update(tiny, tmp_path, rows, config(**fields, guard=trainer.GuardConfig(**bounds)), "second")
    assert e.value.kind == "internal" and same(before, weights(tiny)) and tiny.batch_ids == ["first"]
    assert all(p.grad is None for p in tiny.net.parameters())
    assert update(tiny, tmp_path, rows, config(**fields, guard=wide), "third")["updates"] == 2


def test_no_batch_is_trained_twice(tiny, tmp_path):
    rows = rows_for(tiny, LENGTHS)
    update(tiny, tmp_path, rows, config(), "b1")
    with pytest.raises(TrainerError, match="b1 is held") as e:
        update(tiny, tmp_path, rows, config(), "b1")
    assert e.value.kind == "conflict"


def test_warm_up_counts_updates(tiny, tmp_path):
    rows = rows_for(tiny, LENGTHS)
    rates = [update(tiny, tmp_path, rows, config(lr=1e-3, warmup=4), f"b{i}")["lr"] for i in range(6)]
    assert rates == pytest.approx([0.25e-3, 0.5e-3, 0.75e-3, 1e-3, 1e-3, 1e-3])


def test_a_batch_without_trained_tokens_is_an_update_of_nothing(tiny, tmp_path):
    rows = rows_for(tiny, [5, 6])
    for r in rows:
        r["mask"] = [False] * len(r["mask"])
    before = weights(tiny)
    m = update(tiny, tmp_path, rows, config())
    assert m["optimizer_steps"] == 0 and m["version_min"] == -1 and same(before, weights(tiny))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: config(epochs=0), "epochs is 0; allowed: 1 or more"),
        (lambda: config(temperature=0.0), "temperature is 0.0; allowed: above 0"),
        (lambda: config(guard=trainer.GuardConfig(max_gap=-1)), "guard.max_gap is -1; allowed: 0"),
        (lambda: config(lr=-1.0), "optimizer.lr is -1.0; allowed: above 0"),
        (lambda: config({"loss": "x"}), "loss is 'x'; allowed: ppo"),
    ],
)
def test_bad_configuration(make, words):
    with pytest.raises(TrainerError, match=words):
        make()


def test_tokens_outside_the_model_are_refused(tiny, tmp_path):
    rows = rows_for(tiny, [5])
    rows[0]["tokens"][2] = 9999
    with pytest.raises(TrainerError, match=r"row 0.*tokens has 9999; allowed: 0 to"):
        update(tiny, tmp_path, rows, config())
    rows = rows_for(tiny, [5])
    long = {k: (v if k == "episode" else v * 200) for k, v in rows[0].items()} | {"mask": [False] * 1000}
    with pytest.raises(TrainerError, match="1000 tokens; allowed: 512"):
        update(tiny, tmp_path, [long], config(), "long")
    assert batch.SCHEMA  # the file itself was fine


def test_tied_embeddings_are_refused(model_dir, tmp_path):
    import json
    import shutil

    tied = tmp_path / "tied"
    shutil.copytree(model_dir, tied)
    c = json.loads((tied / "config.json").read_text()) | {"tie_word_embeddings": True}
    (tied / "config.json").write_text(json.dumps(c))
    with pytest.raises(TrainerError, match="untie"):
        model.load(str(tied))
    from milepost_trainer import convert_gguf

    convert_gguf.untie(str(tied), str(tmp_path / "untied"))
    net = model.load(str(tmp_path / "untied")).model
    assert torch.equal(net.lm_head.weight, net.model.embed_tokens.weight)
    assert net.lm_head.weight.data_ptr() != net.model.embed_tokens.weight.data_ptr()


def test_bfloat16_arithmetic_keeps_float32_weights(model_dir, tmp_path):
    t = trainer.Trainer()
    t.init(model_dir, "", "bfloat16", 1)
    m = update(t, tmp_path, rows_for(t, LENGTHS), config())
    assert m["logprob_gap_mean"] < 0.05 and all(p.dtype == torch.float32 for p in t.net.parameters())
