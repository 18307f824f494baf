"""Context parallelism: ranks that share rows are one rank, in losses, gradients, scores, values and weights, and with ranks
that do not. Ranks are real processes over gloo, as in test_ranks.py."""

import json
import shutil

import pytest
import torch
from conftest import rows_for, write_batch
from test_ranks import LENGTHS, launch

from milepost_trainer import kernels, loss, model
from milepost_trainer.errors import TrainerError
from milepost_trainer.options import Options
from milepost_trainer.trainer import Trainer

SIZES = {2: 2, 4: 2}  # ranks in all, and those that share a row
SHORT = 4  # steps of four ranks, which take their time: the first two updates
ROUGH = {"clip_fraction": 0.05, "value_clipfrac": 0.05}  # a token at the bound may fall on either side


@pytest.fixture(scope="module")
def runs(tmp_path_factory, model_dir, demos):
    """What one process, two that share their rows and two pairs made of the same calls. The model has four heads and two
    of keys and values, and rows of odd lengths, so that the last stretch is filled up."""
    d = tmp_path_factory.mktemp("context")
    t = Trainer()
    t.init(model_dir, "", "float32", 5)
    plain = rows_for(t, LENGTHS, advantage=lambda i: 0.5 * i - 1, shift=0.2)
    plain[0]["mask"][1:] = [False] * (LENGTHS[0] - 2) + [True]  # one trained token: a stretch has none
    plain[0]["versions"][1:], plain[0]["logprobs"][-1] = [3] * (LENGTHS[0] - 1), -1.0
    valued = [r | {"values": [0.3 * m for m in r["mask"]], "returns": [0.4 * m for m in r["mask"]]} for r in plain]
    hashes = {n: write_batch(d / f"{n}.arrow", rows) for n, rows in {"plain": plain, "valued": valued}.items()}

    def update(batch_id, name="plain", **config):
        fields = {"batch_id": batch_id, "path": str(d / f"{name}.arrow"), "sha256": hashes[name], "config": config}
        return ["update", fields]

    def steps(size: int) -> list:
        init = {"path": model_dir, "reference": model_dir, "dtype": "float32", "seed": 5, "options": {"context_parallel": size}}
        rule = {"correction": "sequence_tis", "kl": "k3", "kl_coef": 0.1, "norm_length": 50.0}
        return [
            *(s for a in loss.ALLOWED["aggregate"] for s in (["init", init], update(a, loss=rule | {"aggregate": a}))),
            ["init", init | {"value_head": True, "recompute": True}],
            update("v", "valued", loss={"loss": "gspo", "reject": "geometric", "reject_low": 0.5, "reject_high": 1.5}),
            update("w", "valued", micro_tokens=45, epochs=2, minibatches=2),
            ["supervised", {"path": demos}],
            ["values", {"path": str(d / "plain.arrow"), "sha256": hashes["plain"], "micro_tokens": 50}],
            ["score", {"sequences": [r["tokens"] for r in plain], "temperature": 0.7, "reference": False}],
        ]  # fmt: skip

    count = {4: SHORT}
    return {w: launch(w, steps(SIZES.get(w, 0))[: count.get(w)], d / f"out{w}") for w in (1, *SIZES)}


@pytest.mark.parametrize("world", SIZES)
def test_ranks_that_share_rows_are_one_rank(runs, world):
    one, many = runs[1], runs[world]
    assert len(many["results"]) in (SHORT, len(one["results"]))
    for i, (a, b) in enumerate(zip(one["results"], many["results"], strict=False)):
        if isinstance(a, dict):
            for name, value in a.items():
                if name not in ("seconds", "score_seconds", "tokens_per_second", "weights_sha256"):
                    assert b[name] == pytest.approx(value, abs=ROUGH.get(name, 1e-5)), (i, name)
        elif isinstance(a, list):
            for x, y in zip(a, b, strict=True):
                assert torch.allclose(x, y, atol=1e-5), i
    told = [p["loss"] for p in many["progress"]]
    assert told == pytest.approx([p["loss"] for p in one["progress"]][: len(told)], abs=1e-6)


@pytest.mark.parametrize("world", SIZES)
def test_first_losses_and_gradients_agree_to_a_millionth(runs, world):
    """Of the first step after each Init: in all four aggregation modes, and of gspo with a value head."""
    whole = len(loss.ALLOWED["aggregate"]) + 1
    count = min(whole, len(runs[world]["gradients"]))
    for i in range(count):
        one, many = (runs[w]["gradients"][i] for w in (1, world))
        assert set(one) == set(many) and any(n.startswith("head.") for n in one) == (i == whole - 1)
        largest = max(g.abs().max().item() for g in one.values())
        assert largest > 1e-3
        for name, g in one.items():
            assert (g - many[name]).abs().max().item() <= 1e-6 * max(1.0, largest), (i, name)
    losses = [[r["loss"] for r in runs[w]["results"] if isinstance(r, dict) and "loss" in r][:count] for w in (1, world)]
    assert losses[0] == pytest.approx(losses[1], abs=1e-6)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"context_parallel": 2}, "context_parallel is 2; allowed: a divisor of the 1 ranks"),
        ({"context_parallel": -1}, "context_parallel is -1; allowed: 0 or more"),
        ({"context_parallel": 2, "routing_replay": True}, "allowed: one of them"),
        ({"kernels": "liger"}, "kernels is 'liger' and the trainer runs on a cpu; allowed: '' there"),
        ({"kernels": "flash"}, "kernels is 'flash'; allowed: '', 'liger'"),
    ],
)
def test_what_cannot_be_is_refused(model_dir, fields, words):
    t = Trainer()
    with pytest.raises(TrainerError, match=words) as e:
        t.init(model_dir, "", "float32", 5, options=Options(**fields))
    assert e.value.kind == "invalid" and t.policy is None


def test_a_model_whose_tokens_meet_elsewhere_is_refused(model_dir, tmp_path):
    from milepost_trainer import context
    from milepost_trainer.ranks import Ranks

    shutil.copytree(model_dir, tmp_path / "m")
    about = json.loads((tmp_path / "m" / "config.json").read_text())
    (tmp_path / "m" / "config.json").write_text(json.dumps(about | {"layer_types": ["full_attention", "linear_attention"]}))
    with pytest.raises(TrainerError, match="layers of linear_attention; allowed: attention alone"):
        context.join(model.skeleton(str(tmp_path / "m")).model, 2, Ranks(world=2))


class Liger:
    """What kernels.py takes from Liger: it replaces a class of the module and a method of the model."""

    MODEL_TYPE_TO_APPLY_LIGER_FN = {"llama": None}  # noqa: RUF012

    @staticmethod
    def _apply_liger_kernel_to_instance(net, **wanted):
        from transformers.models.llama import modeling_llama

        assert wanted == {"rope": False, "cross_entropy": False, "fused_linear_cross_entropy": False}
        modeling_llama.LlamaRMSNorm = None
        net.model.norm.forward = lambda hidden: hidden * 2


def test_fused_kernels_change_one_model_alone(model_dir):
    net, other = (model.load(model_dir).model for _ in range(2))
    kernels.patch(net, Liger)
    x = torch.ones(1, 32)
    assert torch.equal(net.model.norm(x), x * 2) and not torch.equal(other.model.norm(x), x * 2)
    model.load(model_dir)  # its source module is as it was
    net.config.model_type = "gpt_oss"
    with pytest.raises(TrainerError, match="does not know models of type 'gpt_oss'; allowed: llama"):
        kernels.patch(net, Liger)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_fused_kernels_compute_the_same(model_dir, tmp_path):
    from milepost_trainer.optim import OptimizerConfig
    from milepost_trainer.ranks import Ranks
    from milepost_trainer.trainer import UpdateConfig

    losses = []
    for name in kernels.KERNELS:
        t = Trainer(Ranks(device=torch.device("cuda")))
        t.init(model_dir, "", "float32", 5, options=Options(kernels=name))
        digest = write_batch(tmp_path / "b.arrow", rows_for(t, LENGTHS))
        got = t.update("b", str(tmp_path / "b.arrow"), digest, UpdateConfig(loss.LossConfig(), OptimizerConfig(lr=1e-3)))
        losses.append((got["loss"], got["grad_norm"]))
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
