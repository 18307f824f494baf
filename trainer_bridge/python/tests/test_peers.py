"""Differential tests of the training rule: TRL's GRPOTrainer and verl's core algorithms get the same per-token streams, and
loss and gradient must be ours to a millionth.

The packages are pinned in an environment of their own (envs/peers), where peers.py asks them. Compared is what computes the
same. What does not, and so is not here:

- TRL's `sequence_mask` drops a sequence's loss but keeps it in the denominators, and weights those it keeps; our `reject`
  takes it out of both (verl's rejection does, and is compared).
- TRL counts sequences without a trained token in its means; ours and verl's do not. TRL's cases have none.
- TRL does not clamp the arguments of exp at 20, so its ratios here stay within exp(19). verl does as we do.
- TRL multiplies the KL term by the ratio unless told not to (`use_bias_correction_kl`); the contract has no such factor.
- TRL's cispo has no lower clip and its `epsilon_high` is the bound of the ratio itself, not 1 plus it.
- TRL's sequence level gives every token of a sequence the sequence's ratio as a whole, so advantages that differ within a
  sequence come to something else than verl's and our gspo. Its case has one advantage a sequence.
- verl always clips at `clip_ratio_c` where the advantage is negative; a bound that nothing reaches stands for none. It clamps
  k3 at 10, and each log ratio at 20 before it sums them for rejection; ours clamps the sum. k3 stays below 10 here.
"""

import importlib.util
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from milepost_trainer import critic, loss

HERE = Path(__file__).parent
NEVER = 1e30  # a bound that nothing reaches


def streams(seed: int, far: float, empty: bool, whole_advantages: bool) -> dict[str, torch.Tensor]:
    """[S, T] float64, random. far: standard deviation of log ratios; empty: the last sequence has no trained token."""
    g = torch.Generator().manual_seed(seed)
    lengths = torch.tensor([9, 1, 14, 5, 14, 3, 8, 11])
    shape = (len(lengths), 14)

    def normal(scale=1.0):
        return torch.randn(shape, generator=g, dtype=torch.float64) * scale

    inside = torch.arange(shape[1]) < lengths[:, None]
    mask = inside & (torch.rand(shape, generator=g) < 0.7)
    mask[torch.arange(len(lengths)), lengths - 1] = True
    if empty:
        mask[-1] = False
    old = -normal().abs() - 0.1
    advantage = normal()
    out = {
        "advantage": advantage[:, :1].expand(shape).clone() if whole_advantages else advantage,
        "logprob": old + normal(far).clamp(-19, 19),
        "logprob_old": old,
        "logprob_sampler": old + normal(far).clamp(-19, 19),
        "logprob_reference": old + normal(0.5),
        "value": normal(),
        "value_old": normal(),
        "return": normal(),
    }
    return {k: torch.where(inside, v, 0.0) for k, v in out.items()} | {"mask": mask.double(), "lengths": lengths}


@dataclass
class Case:
    name: str
    package: str
    theirs: dict  # options of peers.py
    ours: dict  # fields of LossConfig, or of ValueConfig for a value loss
    empty: bool = False
    whole_advantages: bool = False
    far: tuple = (0.02, 0.4, 6.0)
    streams: list = field(default_factory=list)

    def __post_init__(self):
        self.streams = [streams(seed, far, self.empty, self.whole_advantages) for seed, far in enumerate(self.far)]


def of_verl(name: str, theirs: dict, ours: dict, **fields) -> Case:
    actor = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": NEVER} | theirs.pop("actor", {})
    theirs = {"loss": "vanilla", "aggregate": "token-mean", "actor": actor} | theirs
    return Case("verl " + name, "verl", theirs, ours, empty=True, **fields)


def of_trl(name: str, theirs: dict, ours: dict, **fields) -> Case:
    theirs = {"epsilon": 0.2, "epsilon_high": 0.28, "loss_type": "dapo", "beta": 0.0} | theirs
    return Case("trl " + name, "trl", theirs, ours, **fields)


def corrected(**options) -> dict:
    return {"correct": True} | {f"vllm_importance_sampling_{k}": v for k, v in options.items()}


NORM = {"aggregate": "seq-mean-token-sum-norm", "norm_length": 14}
CASES = [
    of_verl("ppo", {}, {}),
    of_verl("ppo seq-mean-token-sum", {"aggregate": "seq-mean-token-sum"}, {"aggregate": "seq-mean-token-sum"}),
    of_verl("ppo seq-mean-token-mean", {"aggregate": "seq-mean-token-mean"}, {"aggregate": "seq-mean-token-mean"}),
    of_verl("ppo Dr.GRPO", {"aggregate": "seq-mean-token-sum-norm", "loss_scale_factor": 14}, NORM),
    of_verl("ppo dual clip", {"actor": {"clip_ratio_c": 3.0}}, {"dual_clip": 3.0}),
    of_verl("gspo", {"loss": "gspo", "aggregate": "seq-mean-token-mean"}, {"loss": "gspo"}),
    of_verl("cispo", {"loss": "cispo"}, {"loss": "cispo"}),
    of_verl("token_tis", {"correction": {"rollout_is": "token"}}, {"correction": "token_tis"}),
    of_verl("sequence_tis", {"correction": {"rollout_is": "sequence"}}, {"correction": "sequence_tis"}),
    of_verl("icepop", {"correction": {"rollout_is": "token", "rollout_is_threshold": "0.5_5.0"}}, {"correction": "icepop"}),
    # verl's bounds are of exp(-sum of log rho).
    of_verl("reject sequence", {"correction": {"rollout_rs": "seq_sum_k1", "rollout_rs_threshold": "0.25_2.5"}},
            {"reject": "sequence", "reject_low": 0.4, "reject_high": 4.0}, far=(0.1, 0.4, 0.6)),
    of_verl("reject geometric, corrected",
            {"correction": {"rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.8_1.25", "rollout_is": "token"}},
            {"reject": "geometric", "reject_low": 0.8, "reject_high": 1.25, "correction": "token_tis"}, far=(0.1, 0.4, 0.6)),
    *(of_verl(f"kl {k}", {"kl": k, "kl_coef": 0.3}, {"kl": k, "kl_coef": 0.3}, far=(0.02, 0.4)) for k in ("k1", "k2", "k3")),
    Case("verl value loss", "verl value", {"clip": 0.5}, {"clip": 0.5}, empty=True),
    of_trl("dapo", {}, {}),
    of_trl("bnpo", {"loss_type": "bnpo"}, {}),
    of_trl("grpo", {"loss_type": "grpo"}, {"aggregate": "seq-mean-token-mean"}),
    of_trl("luspo by token", {"loss_type": "luspo"}, {"aggregate": "seq-mean-token-sum"}),
    of_trl("dr_grpo", {"loss_type": "dr_grpo"}, NORM),
    of_trl("cispo", {"loss_type": "cispo", "epsilon_high": 1.28}, {"loss": "cispo", "clip_low": 1.0, "clip_high": 0.28}),
    of_trl("dual clip", {"delta": 3.0}, {"dual_clip": 3.0}),
    of_trl("gspo", {"loss_type": "grpo", "importance_sampling_level": "sequence"}, {"loss": "gspo"},
           whole_advantages=True, far=(0.02, 0.4, 3.0)),
    of_trl("kl k3", {"beta": 0.3, "use_bias_correction_kl": False}, {"kl": "k3", "kl_coef": 0.3}, far=(0.02, 0.4)),
    of_trl("token_tis", corrected(mode="token_truncate", clip_max=2.0), {"correction": "token_tis"}),
    of_trl("sequence_tis", corrected(mode="sequence_truncate", clip_max=2.0), {"correction": "sequence_tis"}, far=(0.02, 0.4)),
    of_trl("icepop", corrected(mode="token_mask", clip_min=0.5, clip_max=5.0), {"correction": "icepop"}),
]  # fmt: skip


@pytest.fixture(scope="module")
def python():
    """The interpreter of the environment of TRL and verl, which is installed where it is not yet."""
    install = subprocess.run([HERE.parent / "envs" / "install", "peers"], capture_output=True, text=True)
    if install.returncode:
        pytest.skip(f"the environment of TRL and verl cannot be installed: {install.stderr.strip()[-300:]}")
    return install.stdout.strip() + "/bin/python"


@pytest.fixture(scope="module")
def theirs(python, model_dir, tmp_path_factory):
    """What the packages computed: by case, one result for each of its streams."""
    d = tmp_path_factory.mktemp("peers")
    asked = [{"package": c.package, "options": c.theirs, "streams": s} for c in CASES for s in c.streams]
    torch.save(asked, d / "cases.pt")
    argv = [python, str(HERE / "peers.py"), model_dir, str(d / "cases.pt"), str(d / "out.pt")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    results = iter(torch.load(d / "out.pt"))
    return {c.name: [next(results) for _ in c.streams] for c in CASES}


def compute(case: Case, s: dict) -> dict:
    """Ours, in float64: loss and gradient [S, T]."""
    inside = torch.arange(s["mask"].shape[1]) < s["lengths"][:, None]
    flat = {k: v[inside] for k, v in s.items() if k != "lengths"}  # [N]
    grad = torch.zeros_like(s["mask"])
    if case.package == "verl value":
        by = flat["value"].requires_grad_()
        per_token, _ = critic.loss(critic.ValueConfig(**case.ours), by, flat["value_old"], flat["return"])
        value = (per_token * flat["mask"]).sum() / flat["mask"].sum()
    else:
        names = ("mask", "advantage", "logprob_old", "logprob_sampler", "logprob_reference")
        sequence = torch.repeat_interleave(torch.arange(len(s["lengths"])), s["lengths"])
        tokens = loss.Tokens(sequence, len(s["lengths"]), **{k: flat[k] for k in names})
        config, by = loss.LossConfig(**case.ours), flat["logprob"].requires_grad_()
        tokens = loss.reject(config, tokens)
        value, _ = loss.compute(config, tokens, by, loss.Denominators.of(tokens))
    grad[inside] = torch.autograd.grad(value, by)[0]
    return {"loss": value.item(), "grad": grad}


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_loss_and_gradient_are_the_package_s(case, theirs):
    moved = 0.0
    for s, want in zip(case.streams, theirs[case.name], strict=True):
        got = compute(case, s)
        assert got["loss"] == pytest.approx(want["loss"], abs=1e-6, rel=1e-7)
        assert torch.allclose(got["grad"], want["grad"], atol=1e-6, rtol=1e-7)
        moved += want["grad"].abs().max().item()
    assert moved > 1e-3, "nothing is compared"


def test_a_whole_update_is_that_of_grpo_trainer(python):
    """The bench's two sides on a model: it ends with an error where losses and gradient norms differ by 1e-4."""
    argv = [python, "bench/update.py", "--rounds", "1", "--episodes", "4", "--threads", "1", "--mixes", "micro", "--widths", "2"]
    env = os.environ | {"PYTHONPATH": "."}
    done = subprocess.run(argv, cwd=HERE.parent, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    package, line = done.stdout.splitlines()
    assert package == "pkg: trainer_bridge" and line.startswith("BenchmarkUpdate/micro 1 ") and " x-TRL " in line


def test_the_trainer_is_free_of_both():
    assert not [name for name in ("trl", "verl") if importlib.util.find_spec(name)]
