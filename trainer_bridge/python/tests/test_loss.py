"""The loss against its golden cases, and properties that the cases cannot show."""

import dataclasses
import io
import json
import sys
from pathlib import Path

import pytest
import torch

from milepost_trainer import loss as L
from milepost_trainer.errors import TrainerError

GOLDEN = sorted((Path(__file__).parent / "golden").glob("*.json"))


def close(a, b):
    return torch.allclose(torch.tensor(a, dtype=torch.float64), torch.tensor(b, dtype=torch.float64), rtol=1e-9, atol=1e-9)


def test_there_are_golden_cases():
    assert len(GOLDEN) >= 30


@pytest.mark.parametrize("path", GOLDEN, ids=lambda p: p.stem)
def test_golden(path):
    case = json.loads(path.read_text())
    got = L.run_case(case)
    assert abs(got["loss"] - case["expected"]["loss"]) <= 1e-9 * max(1, abs(case["expected"]["loss"]))
    for row, want in zip(got["grad"], case["expected"]["grad"], strict=True):
        assert close(row, want)


def tokens_of(case, rows):
    raw = {k: [v[i] for i in rows] for k, v in case["tokens"].items()}
    lengths = [len(r) for r in raw["mask"]]
    flat = {k: torch.tensor([x for row in v for x in row], dtype=torch.float64) for k, v in raw.items()}
    logprob = flat.pop("logprob")
    sequence = torch.repeat_interleave(torch.arange(len(rows)), torch.tensor(lengths))
    return L.Tokens(sequence=sequence, sequences=len(rows), **flat), logprob


@pytest.mark.parametrize("aggregate", L.ALLOWED["aggregate"])
@pytest.mark.parametrize("name", ["ppo_token_tis", "reject_with_kl_sum", "gspo", "ppo_sequence_tis"])
def test_micro_batches_add_up(name, aggregate):
    """The losses of micro-batches over the whole step's denominators sum to the loss of the step at once."""
    case = json.loads((Path(__file__).parent / "golden" / f"{name}.json").read_text())
    config = L.config_from({**case["config"], "aggregate": aggregate, "norm_length": 7})
    tokens, logprob = tokens_of(case, range(len(case["tokens"]["mask"])))
    whole_tokens = L.reject(config, tokens)
    whole = L.Denominators.of(whole_tokens)
    want, _ = L.compute(config, whole_tokens, logprob, whole)
    total = 0.0
    for rows in ([2], [0, 4], [3, 1]):
        part, lp = tokens_of(case, rows)
        total += L.compute(config, L.reject(config, part), lp, whole)[0].item()
    assert abs(total - want.item()) < 1e-12


def test_no_trained_token_is_zero():
    case = json.loads(GOLDEN[0].read_text())
    case["tokens"]["mask"] = [[0.0] * len(r) for r in case["tokens"]["mask"]]
    for aggregate in L.ALLOWED["aggregate"]:
        case["config"] = {"aggregate": aggregate, "norm_length": 10}
        got = L.run_case(case)
        assert got["loss"] == 0 and not any(any(r) for r in got["grad"])


def test_masked_tokens_may_be_infinite():
    case = json.loads((Path(__file__).parent / "golden" / "ppo_kl_k3.json").read_text())
    want = L.run_case(case)
    for i, row in enumerate(case["tokens"]["mask"]):
        for t, m in enumerate(row):
            if not m:
                case["tokens"]["logprob_sampler"][i][t] = float("-inf")
                case["tokens"]["logprob_reference"][i][t] = float("-inf")
    assert L.run_case(case)["loss"] == pytest.approx(want["loss"], abs=1e-12)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"loss": "pg"}, ["loss", "ppo, gspo, cispo"]),
        ({"aggregate": "mean"}, ["aggregate", "token-mean"]),
        ({"aggregate": "seq-mean-token-sum-norm"}, ["norm_length", "required"]),
        ({"correction": "tis"}, ["correction", "token_tis"]),
        ({"reject": "token"}, ["reject", "geometric"]),
        ({"kl": "k4"}, ["kl", "k1, k2, k3"]),
        ({"clip_low": 1.5}, ["clip_low", "0 to 1"]),
        ({"dual_clip": 1}, ["dual_clip", "above 1"]),
        ({"clip_high": float("nan")}, ["clip_high", "0 or more"]),
        ({"icepop_low": 6}, ["icepop_low", "0 to icepop_high"]),
        ({"clip": 1}, ["clip", "allowed", "clip_low"]),
        ({"kl_coef": "much"}, ["kl_coef", "much"]),
    ],
)
def test_bad_configuration_names_field_and_allowed(config, words):
    with pytest.raises(TrainerError) as e:
        L.config_from(config)
    assert e.value.kind == "invalid" and all(w in str(e.value) for w in words), str(e.value)


def test_kl_without_reference_is_refused():
    case = json.loads((Path(__file__).parent / "golden" / "ppo_kl_k1.json").read_text())
    del case["tokens"]["logprob_reference"]
    with pytest.raises(TrainerError, match="logprob_reference"):
        L.run_case(case)


def test_command_line(capsys, monkeypatch):
    case = GOLDEN[0].read_text()
    assert L.main([str(GOLDEN[0])]) == 0
    from_file = json.loads(capsys.readouterr().out)
    assert close(from_file["loss"], json.loads(case)["expected"]["loss"])
    monkeypatch.setattr(sys, "stdin", io.StringIO(case))
    assert L.main(["-"]) == 0
    assert json.loads(capsys.readouterr().out) == from_file
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"config": {"loss": "x"}, "tokens": {}}'))
    assert L.main(["-"]) == 1
    assert "allowed: ppo" in capsys.readouterr().err


def test_defaults_are_those_of_the_contract():
    assert dataclasses.asdict(L.LossConfig()) == {
        "loss": "ppo", "clip_low": 0.2, "clip_high": 0.28, "dual_clip": None, "aggregate": "token-mean",
        "norm_length": None, "correction": "none", "correction_cap": 2.0, "icepop_low": 0.5, "icepop_high": 5.0,
        "reject": "none", "reject_low": 0.5, "reject_high": 2.0, "kl": "none", "kl_coef": 0.0,
    }  # fmt: skip
