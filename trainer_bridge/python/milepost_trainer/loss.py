"""The training rule: policy loss, rollout correction, rejection, KL and aggregation over flat tokens.

    python -m milepost_trainer.loss CASE.json     prints {"loss": ..., "grad": ...} of a case ("-" = standard input)

All token streams are flat tensors of shape [N]; `sequence` [N] names the sequence (0 to S-1) of each token. So padded
cases, packed rows and micro-batches take the same path. Symbols: l = logprob under the weights trained now (the only
thing with a gradient), l_old = the trainer's own at the start of the update, l_roll = the sampler's, l_ref = a reference
model's, A = advantage, m = mask of trained tokens.

Every argument of exp is clamped to [-20, 20] after any sum or mean, with no gradient outside; in gspo the argument
s + l - constant(l) only to at most 10. l - l_old inside gspo's s, and d outside of exp in the KL terms, are not clamped.

Under gradient accumulation the denominators are those of the whole optimizer step: compute `Denominators` once over
all its tokens, then sum the losses of the micro-batches. A sequence must not be split across micro-batches.
"""

import dataclasses
import json
import math
import sys
from dataclasses import dataclass

import torch
from torch import Tensor

from milepost_trainer.errors import TrainerError, invalid

ALLOWED = {
    "loss": ("ppo", "gspo", "cispo"),
    "aggregate": ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm"),
    "correction": ("none", "token_tis", "sequence_tis", "icepop"),
    "reject": ("none", "sequence", "geometric"),
    "kl": ("none", "k1", "k2", "k3"),
}


@dataclass(frozen=True)
class LossConfig:
    """Names and defaults of the loss contract; a bad value is an error that names the field and what is allowed."""

    loss: str = "ppo"
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None
    aggregate: str = "token-mean"
    norm_length: float | None = None
    correction: str = "none"
    correction_cap: float = 2.0
    icepop_low: float = 0.5
    icepop_high: float = 5.0
    reject: str = "none"
    reject_low: float = 0.5
    reject_high: float = 2.0
    kl: str = "none"
    kl_coef: float = 0.0

    def __post_init__(self):
        for field, allowed in ALLOWED.items():
            if getattr(self, field) not in allowed:
                raise invalid(f"{field} is {getattr(self, field)!r}; allowed: {', '.join(allowed)}")
        for field, low, high in (("clip_low", 0, 1), ("clip_high", 0, math.inf), ("kl_coef", 0, math.inf)):
            self._number(field, lambda x, a=low, b=high: a <= x <= b, f"{low} to {high}" if high == 1 else f"{low} or more")
        self._number("correction_cap", lambda x: x > 0, "above 0")
        for pair in ("icepop", "reject"):
            high = self._number(f"{pair}_high", lambda x: x > 0, "above 0")
            self._number(f"{pair}_low", lambda x, b=high: 0 <= x <= b, f"0 to {pair}_high ({high})")
        if self.dual_clip is not None:
            self._number("dual_clip", lambda x: x > 1, "above 1, or none")
        if self.norm_length is not None:
            self._number("norm_length", lambda x: x > 0, "above 0, or none")
        elif self.aggregate == "seq-mean-token-sum-norm":
            raise invalid("norm_length is required with aggregate seq-mean-token-sum-norm; allowed: a number above 0")

    def _number(self, field, ok, allowed):
        value = getattr(self, field)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or not ok(value):
            raise invalid(f"{field} is {value!r}; allowed: {allowed}")
        return value

    @property
    def aggregation(self) -> str:
        """gspo is always seq-mean-token-mean."""
        return "seq-mean-token-mean" if self.loss == "gspo" else self.aggregate


@dataclass
class Tokens:
    """The streams of some whole sequences, each [N]; logprob_sampler and logprob_reference may be None where unused."""

    sequence: Tensor  # int64, 0 to sequences - 1
    sequences: int
    mask: Tensor  # float, 1 where trained
    advantage: Tensor
    logprob_old: Tensor
    logprob_sampler: Tensor | None = None
    logprob_reference: Tensor | None = None

    def per_sequence(self, values: Tensor) -> Tensor:
        """[N] -> [S] sums over each sequence."""
        return values.new_zeros(self.sequences).index_add(0, self.sequence, values)


@dataclass
class Denominators:
    """What a whole optimizer step is divided by."""

    tokens: float  # trained tokens
    sequences: float  # sequences with at least one of them

    @staticmethod
    def of(tokens: Tokens) -> "Denominators":
        counts = tokens.per_sequence(tokens.mask)
        return Denominators(counts.sum().item(), (counts > 0).sum().item())


def clamped_exp(x: Tensor) -> Tensor:
    return x.clamp(-20, 20).exp()


def log_rho(tokens: Tokens) -> Tensor:
    """[N] log of trainer over sampler probability at the start of the update; constant, 0 off the mask."""
    if tokens.logprob_sampler is None:
        raise invalid("tokens.logprob_sampler is missing; correction and reject need it")
    return torch.where(tokens.mask > 0, tokens.logprob_old - tokens.logprob_sampler, 0.0).detach()


def reject(config: LossConfig, tokens: Tokens) -> Tokens:
    """Takes whole sequences off the mask; the result holds for loss, KL, metrics and denominators alike."""
    if config.reject == "none":
        return tokens
    total = tokens.per_sequence(log_rho(tokens))  # [S]
    if config.reject == "geometric":
        total = total / tokens.per_sequence(tokens.mask).clamp(min=1)
    ratio = clamped_exp(total)
    keep = (ratio >= config.reject_low) & (ratio <= config.reject_high)
    return dataclasses.replace(tokens, mask=tokens.mask * keep[tokens.sequence])


def correction(config: LossConfig, tokens: Tokens) -> Tensor | None:
    """[N] constant weight of the rollout correction; None where there is none."""
    if config.correction == "none":
        return None
    log = log_rho(tokens)
    if config.correction == "sequence_tis":
        return clamped_exp(tokens.per_sequence(log)).clamp(max=config.correction_cap)[tokens.sequence]
    rho = clamped_exp(log)
    if config.correction == "token_tis":
        return rho.clamp(max=config.correction_cap)
    return rho * ((rho >= config.icepop_low) & (rho <= config.icepop_high))  # icepop


def policy_loss(config: LossConfig, tokens: Tokens, logprob: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[N] loss a token before correction, [N] ratio, [N] bool where clipping decided; the last two are constants."""
    advantage = tokens.advantage
    if config.loss == "gspo":
        counts = tokens.per_sequence(tokens.mask).clamp(min=1)
        s = tokens.per_sequence(tokens.mask * (logprob - tokens.logprob_old).detach()) / counts  # [S]
        ratio = (s[tokens.sequence] + logprob - logprob.detach()).clamp(max=10).exp()
    else:
        ratio = clamped_exp(logprob - tokens.logprob_old)
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    if config.loss == "cispo":
        return -clipped.detach() * advantage * logprob, ratio.detach(), (clipped != ratio).detach()
    plain, bounded = -advantage * ratio, -advantage * clipped
    loss = torch.maximum(plain, bounded)
    decided = bounded > plain
    if config.loss == "ppo" and config.dual_clip is not None:
        floor = -advantage * config.dual_clip
        dual = (advantage < 0) & (loss > floor)
        loss, decided = torch.where(dual, floor, loss), decided | dual
    return loss, ratio.detach(), decided.detach()


def kl_term(config: LossConfig, tokens: Tokens, logprob: Tensor) -> Tensor:
    """[N] estimate of the KL to the reference."""
    if tokens.logprob_reference is None:
        raise invalid(f"tokens.logprob_reference is missing; kl {config.kl} needs a reference model")
    d = logprob - tokens.logprob_reference
    if config.kl == "k1":
        return d
    if config.kl == "k2":
        return d * d / 2
    return clamped_exp(-d) + d - 1


def aggregate(config: LossConfig, tokens: Tokens, values: Tensor, whole: Denominators) -> Tensor:
    """[N] -> scalar share of these tokens in the aggregate of the whole optimizer step; 0 without a trained token."""
    values = torch.where(tokens.mask > 0, values, 0.0)  # not a product: what is masked may be infinite
    if config.aggregation == "token-mean":
        return values.sum() / max(whole.tokens, 1)
    n = max(whole.sequences, 1)
    if config.aggregation == "seq-mean-token-sum":
        return values.sum() / n
    if config.aggregation == "seq-mean-token-sum-norm":
        return values.sum() / (n * config.norm_length)
    counts = tokens.per_sequence(tokens.mask).clamp(min=1)
    return (tokens.per_sequence(values) / counts).sum() / n  # seq-mean-token-mean


@dataclass
class Parts:
    """What a loss was made of, for metrics; all [N] constants but the scalars."""

    policy: Tensor  # scalar
    kl: Tensor  # scalar, coefficient included
    ratio: Tensor
    clipped: Tensor
    weight: Tensor | None
    kl_tokens: Tensor | None


def compute(config: LossConfig, tokens: Tokens, logprob: Tensor, whole: Denominators) -> tuple[Tensor, Parts]:
    """The loss of some sequences of an optimizer step. `tokens` has been through `reject`; `whole` spans the step."""
    per_token, ratio, clipped = policy_loss(config, tokens, logprob)
    weight = correction(config, tokens)
    if weight is not None:
        per_token = per_token * weight
    policy = aggregate(config, tokens, per_token, whole)
    kl, kl_tokens = policy.new_zeros(()), None
    if config.kl != "none":
        kl_tokens = kl_term(config, tokens, logprob)
        kl = config.kl_coef * aggregate(config, tokens, kl_tokens, whole)
    parts = Parts(policy.detach(), kl.detach(), ratio, clipped, weight, None if kl_tokens is None else kl_tokens.detach())
    return policy + kl, parts


# --- cases ---

STREAMS = ("mask", "advantage", "logprob", "logprob_old", "logprob_sampler", "logprob_reference")


def config_from(fields: dict) -> LossConfig:
    names = [f.name for f in dataclasses.fields(LossConfig)]
    for name in fields:
        if name not in names:
            raise invalid(f"config has no field {name!r}; allowed: {', '.join(names)}")
    # JSON has no word for "no dual clip" but null; the contract also writes none.
    plain = {k: None if k in ("dual_clip", "norm_length") and v == "none" else v for k, v in fields.items()}
    return LossConfig(**plain)


def run_case(case: dict) -> dict:
    """{"config", "tokens"} with streams [sequences][tokens] -> {"loss", "grad"}, in float64. Rows may differ in length."""
    config = config_from(case.get("config", {}))
    raw = case.get("tokens")
    if not isinstance(raw, dict):
        raise invalid("tokens is missing; allowed: an object of streams " + ", ".join(STREAMS))
    for name in raw:
        if name not in STREAMS:
            raise invalid(f"tokens has no stream {name!r}; allowed: {', '.join(STREAMS)}")
    for name in STREAMS[:4]:
        if name not in raw:
            raise invalid(f"tokens.{name} is missing; allowed: an array [sequences][tokens]")
    lengths = [len(row) for row in raw["mask"]]
    flat = {}
    for name, rows in raw.items():
        if rows is None:
            continue
        if [len(row) for row in rows] != lengths:
            raise invalid(f"tokens.{name} has rows of {[len(r) for r in rows]} elements; allowed: {lengths}, as mask")
        flat[name] = torch.tensor([x for row in rows for x in row], dtype=torch.float64)  # [N]
    sequence = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths, dtype=torch.int64))
    logprob = flat.pop("logprob").requires_grad_()
    tokens = reject(config, Tokens(sequence=sequence, sequences=len(lengths), **flat))
    loss, _ = compute(config, tokens, logprob, Denominators.of(tokens))
    (grad,) = torch.autograd.grad(loss, logprob, allow_unused=True)
    grad = torch.zeros_like(logprob) if grad is None else grad
    return {"loss": loss.item(), "grad": [g.tolist() for g in grad.split(lengths)]}


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print("usage: python -m milepost_trainer.loss CASE.json  (- for standard input)", file=sys.stderr)
        return 2
    try:
        if argv[0] == "-":
            case = json.load(sys.stdin)
        else:
            with open(argv[0], encoding="utf-8") as f:
                case = json.load(f)
        result = run_case(case)
    except (OSError, ValueError, TrainerError) as e:
        print(f"loss: {argv[0]}: {e}", file=sys.stderr)
        return 1
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
