"""What an update measures while it passes over its tokens, and the bounds at which it stops.

Each rank adds its own rows; `merged` makes the figures of the whole update. A guard is looked at before every optimizer
step, while nothing has changed yet.
"""

import dataclasses
import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from milepost_trainer import loss, pack, routing
from milepost_trainer.errors import TrainerError, invalid
from milepost_trainer.ranks import Ranks


@dataclass(frozen=True)
class GuardConfig:
    """Bounds beyond which an update is not made; 0 = none. They are looked at before every optimizer step."""

    max_ratio: float = 0.0  # of exp(l - l_old) of any trained token, and of its inverse
    min_entropy: float = 0.0  # mean over trained tokens, nats
    max_gap: float = 0.0  # mean |l_old - l_roll|: how far the trainer is from the sampler
    max_grad_norm: float = 0.0  # before clipping

    def __post_init__(self):
        for f in dataclasses.fields(self):
            if not (math.isfinite(v := getattr(self, f.name)) and v >= 0):
                raise invalid(f"guard.{f.name} is {v}; allowed: 0 (no bound) or more")

    def check(self, stats: "Stats", group: Ranks) -> None:
        """Raises where the numbers so far, of all ranks, leave the bounds. The gradient norm is optim.step's to check."""
        if not (self.max_ratio or self.max_gap or self.min_entropy):
            return
        stats = stats.merged(group)
        farthest = max(stats.high, 1 / max(stats.low, 1e-30))
        gap, entropy = stats.mean("gap"), stats.mean("entropy")
        if self.max_ratio and farthest > self.max_ratio:
            raise self._unstable(f"a ratio to the start of the update, or its inverse, is {farthest:.4g}", "max_ratio")
        if self.max_gap and gap > self.max_gap:
            what = f"the mean |logprob(trainer) - logprob(sampler)| is {gap:.4g} (largest {stats.gap:.4g}, at {stats.gap_at})"
            raise self._unstable(what, "max_gap")
        if self.min_entropy and entropy < self.min_entropy:
            raise self._unstable(f"the mean entropy is {entropy:.4g} nats", "min_entropy")

    def _unstable(self, what: str, bound: str) -> TrainerError:
        limit = f"update.guard.{bound} is {getattr(self, bound):g}"
        return TrainerError("internal", f"{what}; {limit}. The weights were not changed")


@dataclass
class Stats:
    """Sums over the trained tokens of an update, with its extremes."""

    sums: dict[str, float] = field(default_factory=dict)
    low: float = math.inf
    high: float = -math.inf
    gap: float = 0.0
    gap_at: str = ""  # where it is

    def add(self, mask: Tensor, **values: Tensor | None) -> None:
        self.sums["count"] = self.sums.get("count", 0.0) + mask.sum().item()
        for name, v in values.items():
            if v is not None:
                self.sums[name] = self.sums.get(name, 0.0) + torch.where(mask > 0, v.double(), 0.0).sum().item()

    def merged(self, group: Ranks) -> "Stats":
        """The sums and extremes of all ranks, on every rank."""
        out = Stats()
        for part in group.gather(self):
            for name, v in part.sums.items():
                out.sums[name] = out.sums.get(name, 0.0) + v
            out.low, out.high = min(out.low, part.low), max(out.high, part.high)
            out.gap, out.gap_at = max((out.gap, out.gap_at), (part.gap, part.gap_at))
        return out

    def mean(self, name: str) -> float:
        return self.sums.get(name, 0.0) / max(self.sums.get("count", 0.0), 1.0)

    def record(self, tokens: loss.Tokens, parts: loss.Parts, entropy: Tensor, value_clipped: Tensor | None) -> None:
        """Adds a row to the sums."""
        rho = (tokens.logprob_old - tokens.logprob_sampler).double()  # log of trainer over sampler
        self.add(
            tokens.mask,
            entropy=entropy,
            gap=rho.abs(),
            kl_sampler=rho.clamp(-20, 20).exp() - 1 - rho,
            ratio=parts.ratio,
            clipped=parts.clipped,
            weight=parts.weight,
            kl=parts.kl_tokens,
            advantage=tokens.advantage,
            advantage_abs=tokens.advantage.abs(),
            value_clipped=value_clipped,
        )
        if len(parts.ratio):
            self.low = min(self.low, parts.ratio.min().item())
            self.high = max(self.high, parts.ratio.max().item())

    def record_routes(self, row: pack.Row, replay: routing.Replay | None) -> None:
        """Adds a row's replayed routes to the sums; the pass that has just ended was the row's."""
        if replay is not None:
            known = int((row.routes[:, 0, 0] != routing.UNKNOWN).sum())
            for name, n in (
                ("routed", row.tokens.shape[1]),
                ("replayed", known),
                ("choices", known * len(replay.routers)),
                ("changed", replay.changed()),
            ):
                self.sums[name] = self.sums.get(name, 0.0) + n

    def routes(self) -> dict[str, float]:
        """Figures of the replay; none without."""
        if "routed" not in self.sums:
            return {}
        part = {name: self.sums[name] for name in ("routed", "replayed", "choices", "changed")}
        return {
            "routes_replayed": part["replayed"] / max(part["routed"], 1.0),
            "routes_changed": part["changed"] / max(part["choices"], 1.0),
        }

    def record_gap(self, names: list[str], row: pack.Row, tokens: loss.Tokens) -> None:
        """Keeps the largest gap to the sampler and its place: `names` are those of the sequences. It is that of the start of
        the update, so only the first pass records it."""
        if not len(tokens.logprob_old):
            return
        gaps = (tokens.logprob_old - tokens.logprob_sampler).abs()
        k = int(gaps.argmax())
        if gaps[k].item() > self.gap:
            self.gap = gaps[k].item()
            self.gap_at = f"{names[row.members[int(row.sequence[k])]]}, token {int(row.time[k])}"
