"""Adapters: the base stays, B = 0 is the base, merging changes nothing, and a step is that of peft itself."""

import json

import pytest
import torch
from conftest import rows_for
from peft import PeftModel
from safetensors.torch import load_file, save_file
from test_ranks import launch
from test_trainer import LENGTHS, config, same, update, weights
from torch.distributed.checkpoint import FileSystemReader
from transformers import AutoModelForCausalLM

from milepost_trainer import __main__ as cli
from milepost_trainer import checkpoint, lora, optim, policy, sft
from milepost_trainer.errors import TrainerError
from milepost_trainer.options import Options
from milepost_trainer.trainer import Trainer

ADAPTER = Options(lora=lora.LoraConfig(rank=4, alpha=8.0))
SEQUENCES = [[5, 9, 120, 7, 33, 250, 4, 18], [1, 2, 3], [200] * 30]


def make(path, options=ADAPTER, **fields) -> Trainer:
    t = Trainer()
    t.init(str(path), fields.pop("reference", ""), "float32", 5, options=options, **fields)
    return t


def scores(t, reference=False) -> torch.Tensor:
    return torch.cat(t.score(SEQUENCES, 1.0, reference))


def close(a, b) -> bool:
    """To a millionth of the value: a few units in the last place of a float32."""
    return torch.allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.fixture
def adapted(model_dir):
    return make(model_dir)


@pytest.fixture
def trained(adapted, tmp_path):
    """After two updates, so that neither matrix is as it began."""
    for i in range(2):
        update(adapted, tmp_path, rows_for(adapted, LENGTHS), config(), f"b{i}")
    return adapted


def base(t) -> dict:
    return {k: v.clone() for k, v in lora.base_tensors(t.policy.tensors()).items()}


def test_an_untrained_adapter_is_the_base(tiny, adapted):
    assert torch.equal(scores(tiny), scores(adapted)) and same(base(adapted), weights(tiny))
    assert adapted.policy.adapter.base_sha256 == tiny.info()["weights_sha256"] != adapted.info()["weights_sha256"]
    assert adapted.policy.adapter.config.target_modules == (
        "down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj",
    )  # fmt: skip


def test_the_seed_draws_the_adapter(model_dir, adapted):
    assert same(weights(adapted), weights(make(model_dir)))
    other = Trainer()
    other.init(model_dir, "", "float32", 6, options=ADAPTER)
    assert not same(weights(adapted), weights(other))


def test_only_the_adapter_learns(tiny, adapted, tmp_path, monkeypatch):
    kept, real = {}, optim.step

    def step(net, *args, **fields):
        kept.update({n: p.grad is not None for n, p in net.named_parameters()})
        return real(net, *args, **fields)

    monkeypatch.setattr(optim, "step", step)
    before = weights(adapted)
    update(adapted, tmp_path, rows_for(adapted, LENGTHS), config(), "b1")
    assert {n for n, has in kept.items() if has} == {n for n in before if n.endswith(lora.MATRICES)}
    update(adapted, tmp_path, rows_for(adapted, LENGTHS), config(), "b2")
    after = weights(adapted)
    assert all(torch.equal(before[n], after[n]) != n.endswith(lora.MATRICES) for n in before)
    assert not torch.equal(scores(tiny), scores(adapted))


def test_merged_is_the_adapter(trained, tmp_path):
    """To a millionth, and to the last bit what peft merges out of the exported adapter."""
    digest, _ = checkpoint.export(trained, str(tmp_path / "model"), "")
    assert (
        checkpoint.export(trained, str(tmp_path / "adapter"), "", adapter=True)[0] == digest == trained.info()["weights_sha256"]
    )
    plain = make(tmp_path / "model", Options())
    assert close(scores(plain), scores(trained))
    about = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert about["base_model_name_or_path"] == trained.policy.adapter.base and about["r"] == 4
    net = AutoModelForCausalLM.from_pretrained(about["base_model_name_or_path"], dtype=torch.float32)
    theirs = PeftModel.from_pretrained(net, tmp_path / "adapter").merge_and_unload().state_dict()
    assert same(load_file(tmp_path / "model" / "model.safetensors"), theirs)


def test_a_step_is_that_of_peft(trained, tmp_path):
    """The same loss by padded arrays on peft's own model, and the same AdamW."""
    checkpoint.export(trained, str(tmp_path / "adapter"), "", adapter=True)
    net = AutoModelForCausalLM.from_pretrained(trained.policy.adapter.base, dtype=torch.float32)
    theirs = PeftModel.from_pretrained(net, tmp_path / "adapter", is_trainable=True)
    rows, c = rows_for(trained, LENGTHS), optim.OptimizerConfig(lr=1e-2, eps=1e-3, weight_decay=0.1, clip_norm=0)
    longest = max(LENGTHS)
    ids, mask, advantage = torch.zeros(len(rows), longest, dtype=torch.long), *torch.zeros(2, len(rows), longest)
    for i, r in enumerate(rows):
        n = len(r["tokens"])
        ids[i, :n], mask[i, :n], advantage[i, :n] = (torch.tensor(r[k]) for k in ("tokens", "mask", "advantages"))
    logprob = theirs(input_ids=ids, use_cache=False).logits.log_softmax(-1)[:, :-1].gather(2, ids[:, 1:, None])[..., 0]
    ratio, m = (logprob - logprob.detach()).exp(), mask[:, 1:]
    (-(ratio * advantage[:, 1:] * m).sum() / m.sum()).backward()
    wanted = {n: p for n, p in theirs.named_parameters() if p.requires_grad}
    torch.optim.AdamW(wanted.values(), lr=c.lr, betas=(c.beta1, c.beta2), eps=c.eps, weight_decay=c.weight_decay).step()
    trained.fresh_optimizer()
    fields = config().__dict__ | {"optimizer": c}
    update(trained, tmp_path, rows, type(config())(**fields), "b")
    got = lora.own_tensors(trained.policy.tensors())
    assert len(got) == len(wanted) == 2 * 2 * 7
    for name, value in got.items():
        assert (value - wanted[f"base_model.model.{name}"]).abs().max() <= 1e-6, name


@pytest.mark.parametrize("value", [False, True])
def test_recompute_and_a_value_head_change_nothing_else(model_dir, tmp_path, value):
    made = []
    for recompute in (False, True):
        t = make(model_dir, value_head=value, recompute=recompute)
        rows = rows_for(t, LENGTHS)
        if value:
            rows = [r | {"values": [0.0] * len(r["mask"]), "returns": [0.5 * m for m in r["mask"]]} for r in rows]
        update(t, tmp_path, rows, config(micro_tokens=50), "b")
        made.append((weights(t), [p.detach().clone() for p in t.head.parameters()] if value else []))
    assert same(made[0][0], made[1][0])
    assert all(torch.equal(a, b) and a.abs().max() > 0 for a, b in zip(made[0][1], made[1][1], strict=True))


def test_the_base_is_the_reference(tiny, model_dir, tmp_path):
    """Without a second model, and whatever the adapter has become."""
    t = make(model_dir, reference=model_dir)
    assert isinstance(t.reference, lora.Base)
    for i in range(2):
        m = update(t, tmp_path, rows_for(t, LENGTHS), config({"kl": "k3", "kl_coef": 0.1}), f"b{i}")
    assert m["kl_reference"] > 0 and torch.equal(scores(t, reference=True), scores(tiny))
    assert not torch.equal(scores(t), scores(tiny))
    elsewhere = tmp_path / "copy"
    checkpoint.export(tiny, str(elsewhere), "")
    assert isinstance(make(model_dir, reference=str(elsewhere)).reference, policy.Policy)


def test_a_failed_update_leaves_all_as_before(trained, tmp_path, monkeypatch):
    before, state = weights(trained), json.dumps(trained.info())
    real, steps = optim.step, []

    def step(*args, **fields):
        steps.append(1)
        if len(steps) == 3:
            raise TrainerError("internal", "made to fail")
        return real(*args, **fields)

    monkeypatch.setattr(optim, "step", step)
    with pytest.raises(TrainerError, match="made to fail"):
        update(trained, tmp_path, rows_for(trained, LENGTHS), config(minibatches=3), "b9")
    assert same(before, weights(trained)) and json.dumps(trained.info()) == state


def test_a_checkpoint_holds_the_adapter_alone(trained, tmp_path):
    checkpoint.save(trained, str(tmp_path / "c"))
    held = FileSystemReader(tmp_path / "c" / "state").read_metadata().state_dict_metadata
    assert {n for n in held if n.startswith("weights.")} == {
        f"weights.net.{n}" for n in weights(trained) if n.endswith(lora.MATRICES)
    }
    other = Trainer()
    checkpoint.load(other, str(tmp_path / "c"), "", options=ADAPTER)
    assert same(weights(trained), weights(other)) and other.info() == trained.info()
    rows = rows_for(trained, LENGTHS)
    for t in (trained, other):
        update(t, tmp_path, rows, config(minibatches=2), "b9")
    assert same(weights(trained), weights(other))
    assert cli.main(["export", str(tmp_path / "c"), str(tmp_path / "m")]) == 0
    checkpoint.load(trained, str(tmp_path / "c"), "", options=ADAPTER)
    assert close(scores(make(tmp_path / "m", Options())), scores(trained))


def test_a_checkpoint_of_something_else_is_refused(tiny, model_dir, tmp_path):
    copy = tmp_path / "base"
    checkpoint.export(tiny, str(copy), "")
    t = make(copy)
    checkpoint.save(t, str(tmp_path / "c"))
    checkpoint.save(tiny, str(tmp_path / "whole"))
    wider = Options(lora=lora.LoraConfig(rank=8, alpha=8.0))
    for path, options, said in (
        ("c", Options(), "holds an adapter, and trainer.lora wants none"),
        ("whole", ADAPTER, "holds no adapter, and trainer.lora wants one"),
        ("c", wider, "'rank': 8"),
    ):
        with pytest.raises(TrainerError, match=said) as e:
            checkpoint.load(Trainer(), str(tmp_path / path), "", options=options)
        assert e.value.kind == "invalid"
    state = load_file(copy / "model.safetensors")
    state["model.norm.weight"][0] += 1e-3
    save_file(state, copy / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(TrainerError, match="has weights that hash to") as e:
        checkpoint.load(Trainer(), str(tmp_path / "c"), "", options=ADAPTER)
    assert e.value.kind == "corrupt"


def test_an_exported_adapter_is_a_start(trained, tmp_path):
    path = str(tmp_path / "adapter")
    checkpoint.export(trained, path, "", adapter=True)
    other = make(path)
    assert torch.equal(scores(other), scores(trained)) and other.policy.adapter == trained.policy.adapter
    assert other.info()["weights_sha256"] == trained.info()["weights_sha256"]
    assert cli.main(["export", path, str(tmp_path / "merged")]) == 0
    assert close(scores(make(tmp_path / "merged", Options())), scores(trained))
    for options, said in (
        (Options(), "is an adapter"),
        (Options(lora=lora.LoraConfig(rank=2, alpha=8.0)), "has rank 4 and alpha 8"),
        (Options(lora=lora.LoraConfig(rank=4, alpha=8.0, target_modules=("q_proj",))), "is of other layers"),
    ):
        with pytest.raises(TrainerError, match=said):
            make(path, options)


def test_layers_are_chosen_by_name(model_dir):
    t = make(model_dir, Options(lora=lora.LoraConfig(rank=2, alpha=2.0, target_modules=("v_proj", "q_proj"))))
    names = {n.rsplit(".lora_", 1)[0].rsplit(".", 1)[1] for n in lora.own_tensors(t.policy.tensors())}
    assert names == {"q_proj", "v_proj"} and t.policy.adapter.config.target_modules == ("q_proj", "v_proj")
    with pytest.raises(TrainerError, match=r"target_modules names 'lm_head'; allowed: down_proj, gate_proj"):
        make(model_dir, Options(lora=lora.LoraConfig(target_modules=("lm_head",))))


def test_demonstrations_train_it_too(adapted, demos):
    before, told = base(adapted), []
    c = sft.SupervisedConfig(optim.OptimizerConfig(1e-2), steps=8, batch_episodes=8)
    sft.run(adapted, demos, c, told.append, lambda: True)
    assert same(before, base(adapted)) and told[-1]["loss"] < told[0]["loss"] - 0.2


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, model_dir):
    """What one process and two made of the same calls."""
    from conftest import write_batch

    d = tmp_path_factory.mktemp("lora_ranks")
    t = make(model_dir)
    digest = write_batch(d / "b.arrow", rows_for(t, [20, 31, 12, 44, 25], advantage=lambda i: 0.5 * i - 1, shift=0.2))

    def steps(out):
        fields = {
            "path": str(d / "b.arrow"),
            "sha256": digest,
            "config": {"micro_tokens": 60, "loss": {"kl": "k2", "kl_coef": 0.1}},
        }
        scored = ["score", {"sequences": SEQUENCES, "temperature": 1.0, "reference": False}]
        lora_options = {"lora": {"rank": 4, "alpha": 8.0}}
        start = {"path": model_dir, "reference": model_dir, "dtype": "float32", "seed": 5, "recompute": True}
        return [
            ["init", start | {"options": lora_options}],
            scored,
            ["update", fields | {"batch_id": "b1"}],
            ["update", fields | {"batch_id": "b2"}],
            scored,
            ["save", {"path": str(out / "c")}],
            ["export", {"path": str(out / "model"), "dtype": ""}],
            ["export", {"path": str(out / "adapter"), "dtype": "", "adapter": True}],
            ["load", {"path": str(out / "c"), "reference": "", "options": lora_options}],
        ]

    return d, {world: launch(world, steps(d / f"out{world}"), d / f"out{world}") for world in (1, 2)}


def test_two_ranks_are_one(ranks, model_dir):
    d, runs = ranks
    one, two = (runs[w]["results"] for w in (1, 2))
    assert not [r for r in one + two if isinstance(r, dict) and "error" in r]
    for i in (2, 3):
        assert two[i]["loss"] == pytest.approx(one[i]["loss"], abs=1e-6)
        assert two[i]["kl_reference"] == pytest.approx(one[i]["kl_reference"], abs=1e-6)
    for a, b in zip(one[1] + one[4], two[1] + two[4], strict=True):
        assert (a - b).abs().max() <= 1e-5
    first = [runs[w]["gradients"][0] for w in (1, 2)]
    assert set(first[0]) == set(first[1]) and all(n.endswith(lora.MATRICES) for n in first[0])
    for name, g in first[0].items():
        assert (g - first[1][name]).abs().max() <= 1e-6, name
    assert one[0]["weights_sha256"] == two[0]["weights_sha256"]
    for results in (one, two):
        assert results[5]["weights_sha256"] == results[6][0] == results[7][0] == results[8]["weights_sha256"]
    two_there, one_here = make(d / "out2" / "adapter"), Trainer()  # two ranks' files, read by one process
    checkpoint.load(one_here, str(d / "out2" / "c"), "", options=ADAPTER)
    assert same(weights(two_there), weights(one_here))
    merged = [load_file(d / f"out{w}" / "model" / "model.safetensors") for w in (1, 2)]
    for name, w in merged[0].items():
        assert (w - merged[1][name]).abs().max() <= 1e-4, name
