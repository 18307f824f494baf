"""The trainer's state and the update step.

Invariants. Only one thread calls in here. A changing operation is all or nothing: after an exception, weights (the
value head's among them), optimizer and counters are what they were. `batch_ids` names every batch the weights hold, in
order, so a batch is never trained twice in the lineage of these weights.
"""

import dataclasses
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from milepost_trainer import batch, critic, loss, model, optim, pack
from milepost_trainer.errors import TrainerError, invalid


@dataclass(frozen=True)
class UpdateConfig:
    loss: loss.LossConfig
    optimizer: optim.OptimizerConfig
    warmup: int = 0  # updates
    epochs: int = 1
    minibatches: int = 1  # optimizer steps a pass; at most one a trained sequence
    micro_tokens: int = 8192
    temperature: float = 1.0
    value: critic.ValueConfig = field(default_factory=critic.ValueConfig)  # read where there is a value head

    def __post_init__(self):
        for name, low in (("warmup", 0), ("epochs", 1), ("minibatches", 1), ("micro_tokens", 1)):
            if getattr(self, name) < low:
                raise invalid(f"{name} is {getattr(self, name)}; allowed: {low} or more")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise invalid(f"temperature is {self.temperature}; allowed: above 0")


@dataclass
class Stats:
    """Sums over the trained tokens of an update; `metrics` turns them into means."""

    sums: dict[str, float] = field(default_factory=dict)
    low: float = math.inf
    high: float = -math.inf
    gap: float = 0.0

    def add(self, mask: Tensor, **values: Tensor | None) -> None:
        self.sums["count"] = self.sums.get("count", 0.0) + mask.sum().item()
        for name, v in values.items():
            if v is not None:
                self.sums[name] = self.sums.get(name, 0.0) + torch.where(mask > 0, v.double(), 0.0).sum().item()

    def mean(self, name: str) -> float:
        return self.sums.get(name, 0.0) / max(self.sums.get("count", 0.0), 1.0)


@dataclass
class Prepared:
    """The trained part of a batch: each sequence up to its last trained token, and its streams on trained tokens [K]."""

    ids: list[Tensor]  # [T] int64
    wanted: list[Tensor]  # [T] bool
    advantage: list[Tensor]
    sampler: list[Tensor]
    old: list[Tensor] | None = None
    reference: list[Tensor] | None = None
    values: list[Tensor] | None = None  # the value head's at the start; with returns, or None where the batch has none
    returns: list[Tensor] | None = None

    def tokens(self, row: pack.Row, old: Tensor) -> loss.Tokens:
        def cat(streams):
            return None if streams is None else torch.cat([streams[i] for i in row.members])

        return loss.Tokens(
            sequence=row.sequence,
            sequences=len(row.members),
            mask=torch.ones_like(old),
            advantage=cat(self.advantage),
            logprob_old=old,
            logprob_sampler=cat(self.sampler),
            logprob_reference=cat(self.reference),
        )

    def rows(self, members: list[int], limit: int) -> list[pack.Row]:
        groups = pack.plan([len(self.ids[i]) for i in members], limit)
        return [pack.build(self.ids, self.wanted, [members[k] for k in g]) for g in groups]


def prepare(sequences: list[batch.Sequence]) -> Prepared:
    trained = [s for s in sequences if s.mask.any()]
    ends = [int(s.mask.nonzero().max()) + 1 for s in trained]  # nothing after the last trained token matters to it
    valued = bool(trained) and trained[0].values is not None
    return Prepared(
        ids=[s.tokens[:n] for s, n in zip(trained, ends, strict=True)],
        wanted=[s.mask[:n] for s, n in zip(trained, ends, strict=True)],
        advantage=[s.advantages[s.mask] for s in trained],
        sampler=[s.logprobs[s.mask] for s in trained],
        values=[s.values[s.mask] for s in trained] if valued else None,
        returns=[s.returns[s.mask] for s in trained] if valued else None,
    )


def frozen_logprobs(net, prepared: Prepared, config: UpdateConfig) -> list[Tensor]:
    """[K] a sequence: logprobs of the trained tokens without gradient."""
    out: list[Tensor | None] = [None] * len(prepared.ids)
    with torch.no_grad():
        for row in prepared.rows(list(range(len(prepared.ids))), config.micro_tokens):
            logprob, _ = pack.row_logprobs(net, row, config.temperature)
            for k, i in enumerate(row.members):
                out[i] = logprob[row.sequence == k]
    return out


class Trainer:
    def __init__(self):
        self.net = None
        self.reference = None
        self.head: critic.ValueHead | None = None
        self.tokenizer = None
        self.tokenizer_files: dict[str, bytes] = {}
        self.optimizer = None
        self.dtype = "float32"
        self.seed = 0
        self.updates = 0
        self.batch_ids: list[str] = []
        self.pending_optimizer: dict | None = None  # state of a loaded checkpoint, until the first update makes AdamW

    # --- loading ---

    def init(self, path: str, reference: str, dtype: str, seed: int, value_head: bool = False) -> None:
        if dtype not in model.DTYPES:
            raise invalid(f"dtype is {dtype!r}; allowed: {', '.join(model.DTYPES)}")
        loaded = model.load(path)
        self.reference = self._load_reference(reference, loaded.model)
        self.net, self.tokenizer, self.tokenizer_files = loaded.model, loaded.tokenizer, loaded.files
        self.head = critic.ValueHead(self.net.config.hidden_size) if value_head else None
        self.dtype, self.seed, self.updates, self.batch_ids = dtype, seed, 0, []
        self.optimizer = self.pending_optimizer = None
        torch.manual_seed(seed)

    def _load_reference(self, path: str, net):
        if not path:
            return None
        reference = model.load(path).model
        if reference.config.vocab_size != net.config.vocab_size:
            raise invalid(
                f"reference {path} has vocabulary {reference.config.vocab_size}; allowed: {net.config.vocab_size}, the model's"
            )
        return reference.requires_grad_(False)

    def require(self):
        if self.net is None:
            raise invalid("no model is loaded; call Init or Load first")
        return self.net

    def autocast(self):
        return torch.autocast("cpu", torch.bfloat16, enabled=self.dtype == "bfloat16")

    # --- the update step ---

    def update(self, batch_id: str, path: str, sha256: str, config: UpdateConfig) -> dict:
        """Trains on one batch; returns the metrics named in UpdateReply.

        l_old comes from the trainer's own forward pass at the start. Where the update is a single optimizer step that
        rejects nothing, that pass and the training pass are the same, and the latter serves for both.
        """
        net, started = self.require(), time.perf_counter()
        if not batch_id:
            raise invalid("batch_id is empty; allowed: an id that is unique in the run")
        if batch_id in self.batch_ids:
            raise TrainerError(
                "conflict", f"batch {batch_id} is held by these weights already (update {self.batch_ids.index(batch_id) + 1})"
            )
        if config.loss.kl != "none" and self.reference is None:
            raise invalid(f"loss.kl is {config.loss.kl} but no reference model is loaded; name one in Init, or set kl none")
        sequences = batch.load(path, sha256)
        batch.check_fits(sequences, net.config.vocab_size, net.config.max_position_embeddings)
        self._check_values(sequences)
        prepared = prepare(sequences)
        lr = config.optimizer.lr * optim.schedule("constant", self.updates, 1, config.warmup, 1.0)
        undo = self._snapshot() if config.epochs * config.minibatches > 1 else self._keep_optimizer()
        try:
            with self.autocast():
                metrics = self._train(net, prepared, config, lr)
        except BaseException:
            undo()
            raise
        self.updates += 1
        self.batch_ids.append(batch_id)
        seconds = time.perf_counter() - started
        tokens = sum(len(s.tokens) for s in sequences)
        versions = torch.cat([s.versions[s.mask] for s in sequences]) if sequences else torch.empty(0)
        return metrics | {
            "updates": self.updates,
            "lr": lr,
            "sequences": len(sequences),
            "tokens": tokens,
            "version_min": int(versions.min()) if len(versions) else -1,
            "version_max": int(versions.max()) if len(versions) else -1,
            "seconds": seconds,
            "tokens_per_second": tokens * config.epochs / seconds,
        }

    def _check_values(self, sequences: list[batch.Sequence]) -> None:
        """Head and columns go together: neither an untrained head nor returns that nothing learns."""
        valued = bool(sequences) and sequences[0].values is not None
        if valued and self.head is None:
            raise invalid("the batch has values and returns but there is no value head; allowed: Init or Load with value_head")
        if sequences and not valued and self.head is not None:
            raise invalid(
                "the batch has no values and returns, which the value head needs; allowed: those of an estimator with values"
            )

    def _train(self, net, prepared: Prepared, config: UpdateConfig, lr: float) -> dict:
        started, count = time.perf_counter(), len(prepared.ids)
        rejecting = config.loss.reject != "none"
        if rejecting or config.epochs * min(config.minibatches, count) > 1:
            prepared.old = frozen_logprobs(net, prepared, config)
        if config.loss.kl != "none":
            prepared.reference = frozen_logprobs(self.reference, prepared, config)
        kept = self._kept(prepared, config.loss) if rejecting else list(range(count))
        score_seconds = time.perf_counter() - started

        self._ready_optimizer(net, config, lr)
        stats, losses, norms = Stats(), {"policy": 0.0, "kl": 0.0, "value": 0.0}, []
        for epoch in range(config.epochs):
            for members in self._minibatches(kept, config.minibatches, epoch):
                norms.append(self._optimizer_step(net, prepared, members, config, stats, losses, first=epoch == 0))
        steps = max(len(norms), 1)
        return self._value_metrics(prepared, kept, stats, losses["value"] / steps) | {
            "loss": (losses["policy"] + losses["kl"] + config.value.coef * losses["value"]) / steps,
            "policy_loss": losses["policy"] / steps,
            "kl_loss": losses["kl"] / steps,
            "grad_norm": sum(norms) / steps,
            "grad_norm_max": max(norms, default=0.0),
            "ratio_min": stats.low if norms else 1.0,
            "ratio_max": stats.high if norms else 1.0,
            "ratio_mean": stats.mean("ratio") if norms else 1.0,
            "correction_mean": stats.mean("weight") if config.loss.correction != "none" and norms else 1.0,
            "entropy": stats.mean("entropy"),
            "kl_sampler": stats.mean("kl_sampler"),
            "logprob_gap_mean": stats.mean("gap"),
            "logprob_gap_max": stats.gap,
            "clip_fraction": stats.mean("clipped"),
            "kl_reference": stats.mean("kl"),
            "advantage_mean": stats.mean("advantage"),
            "advantage_abs_mean": stats.mean("advantage_abs"),
            "trained_tokens": sum(len(prepared.advantage[i]) for i in kept),
            "rejected_sequences": count - len(kept),
            "optimizer_steps": len(norms),
            "score_seconds": score_seconds,
        }

    def _value_metrics(self, prepared: Prepared, kept: list[int], stats: Stats, mean_loss: float) -> dict:
        if self.head is None:
            return {}
        explained = None
        if kept:
            explained = critic.explained_variance(
                torch.cat([prepared.values[i] for i in kept]), torch.cat([prepared.returns[i] for i in kept])
            )
        return {"value_loss": mean_loss, "value_clipfrac": stats.mean("value_clipped"), "explained_variance": explained}

    def _optimizer_step(self, net, prepared, members, config, stats: Stats, losses: dict, first: bool) -> float:
        """One optimizer step over `members`; its denominators are those of all of them, whatever the micro-batches."""
        whole = loss.Denominators(float(sum(len(prepared.advantage[i]) for i in members)), float(len(members)))
        total = 0.0
        for row in prepared.rows(members, config.micro_tokens):
            logprob, entropy, values = self._forward(net, row, config)
            old = logprob.detach() if prepared.old is None else torch.cat([prepared.old[i] for i in row.members])
            tokens = prepared.tokens(row, old)
            share, parts = loss.compute(config.loss, tokens, logprob, whole)
            value_clipped = None
            if values is not None:
                streams = [torch.cat([s[i] for i in row.members]) for s in (prepared.values, prepared.returns)]
                per_token, value_clipped = critic.loss(config.value, values, *streams)
                value_share = per_token.sum() / max(whole.tokens, 1)
                losses["value"] += value_share.item()
                share = share + config.value.coef * value_share
            share.backward()
            total += share.item()
            losses["policy"] += parts.policy.item()
            losses["kl"] += parts.kl.item()
            record(stats, tokens, parts, entropy, first, value_clipped)
        heads = () if self.head is None else (self.head,)
        return optim.step(net, self.optimizer, config.optimizer.clip_norm, total, *heads)

    def _forward(self, net, row: pack.Row, config: UpdateConfig) -> tuple[Tensor, Tensor, Tensor | None]:
        """Logprob, entropy and, with a value head, value [M] of the wanted tokens, by one pass through the trunk."""
        if self.head is None:
            return *pack.row_logprobs(net, row, config.temperature, entropy=True), None
        hidden = pack.row_hidden(net, row)  # [M, W]
        logprob, entropy = pack.hidden_logprobs(net, hidden, row, config.temperature, entropy=True)
        return logprob, entropy, self.head(hidden.detach() if config.value.detach else hidden)

    def _kept(self, prepared: Prepared, config: loss.LossConfig) -> list[int]:
        """Indices of the sequences that rejection leaves."""
        row = pack.build(prepared.ids, prepared.wanted, list(range(len(prepared.ids)))) if prepared.ids else None
        if row is None:
            return []
        tokens = loss.reject(config, prepared.tokens(row, torch.cat(prepared.old)))
        return [i for i, n in enumerate(tokens.per_sequence(tokens.mask).tolist()) if n > 0]

    def _minibatches(self, members: list[int], count: int, epoch: int) -> list[list[int]]:
        """Parts of about equal size; shuffled, where there are several, by seed, update and epoch alone."""
        count = min(count, len(members))
        if count <= 1:
            return [members] if members else []
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + self.updates) * 1_009 + epoch)
        order = [members[i] for i in torch.randperm(len(members), generator=generator).tolist()]
        return [order[k::count] for k in range(count)]

    def _ready_optimizer(self, net, config: UpdateConfig, lr: float) -> None:
        if self.optimizer is None:
            self.optimizer = optim.make(net, config.optimizer, self.head)
            if self.pending_optimizer is not None:
                self.optimizer.load_state_dict(self.pending_optimizer)
                self.pending_optimizer = None
        optim.configure(self.optimizer, config.optimizer, lr, config.value.lr * lr / config.optimizer.lr)

    # --- all or nothing ---

    def _keep_optimizer(self) -> Callable[[], None]:
        """For work that changes weights in its last act only: an undo that forgets half-made gradients."""
        optimizer, pending = self.optimizer, self.pending_optimizer

        def undo():
            self.optimizer, self.pending_optimizer = optimizer, pending
            self._forget_gradients()

        return undo

    def _snapshot(self) -> Callable[[], None]:
        """Copies weights and optimizer state; the result puts them back."""
        weights = {k: v.detach().clone() for k, v in self.net.state_dict().items()}
        head = None if self.head is None else copy_state(self.head.state_dict())
        state = self.optimizer_state()
        state = None if state is None else copy_state(state)

        def undo():
            self.net.load_state_dict(weights)
            if head is not None:
                self.head.load_state_dict(head)
            self._forget_gradients()
            self.optimizer, self.pending_optimizer = None, state

        return undo

    def _forget_gradients(self) -> None:
        self.net.zero_grad(set_to_none=True)
        if self.head is not None:
            self.head.zero_grad(set_to_none=True)

    def optimizer_state(self) -> dict | None:
        return self.optimizer.state_dict() if self.optimizer is not None else self.pending_optimizer

    # --- reading ---

    def score(self, sequences: list[list[int]], temperature: float, reference: bool) -> list[Tensor]:
        """[T] float32 a sequence."""
        net = self.require()
        if reference:
            if self.reference is None:
                raise invalid("no reference model is loaded; name one in Init")
            net = self.reference
        if not (math.isfinite(temperature) and temperature > 0):
            raise invalid(f"temperature is {temperature}; allowed: above 0")
        vocab, context = net.config.vocab_size, net.config.max_position_embeddings
        for i, s in enumerate(sequences):
            if not 0 < len(s) <= context:
                raise invalid(f"sequence {i} has {len(s)} tokens; allowed: 1 to {context}")
            if not all(0 <= t < vocab for t in s):
                raise invalid(f"sequence {i} holds a token outside the vocabulary; allowed: 0 to {vocab - 1}")
        with self.autocast():
            return pack.score(net, [torch.tensor(s) for s in sequences], temperature)

    def values(self, path: str, sha256: str, micro_tokens: int) -> list[Tensor]:
        """[K] float32 a row of the batch file: the head's value at each trained token. Nothing changes."""
        net = self.require()
        if self.head is None:
            raise invalid("there is no value head; allowed: Init or Load with value_head")
        if micro_tokens < 1:
            raise invalid(f"micro_tokens is {micro_tokens}; allowed: 1 or more")
        sequences = batch.load(path, sha256)
        batch.check_fits(sequences, net.config.vocab_size, net.config.max_position_embeddings)
        prepared = prepare(sequences)
        places = [i for i, s in enumerate(sequences) if s.mask.any()]  # of the prepared ones
        out = [torch.zeros(0) for _ in sequences]
        with torch.no_grad(), self.autocast():
            for row in prepared.rows(list(range(len(places))), micro_tokens):
                values = self.head(pack.row_hidden(net, row))
                for k, i in enumerate(row.members):
                    out[places[i]] = values[row.sequence == k]
        for i, v in enumerate(out):
            if not v.isfinite().all():
                raise TrainerError("internal", f"row {i} (episode {sequences[i].episode!r}): a value is not finite")
        return out

    def info(self) -> dict:
        net = self.require()
        return {
            "parameters": sum(p.numel() for p in net.parameters()),
            "vocab_size": net.config.vocab_size,
            "max_context": net.config.max_position_embeddings,
            "dtype": self.dtype,
            "updates": self.updates,
            "batch_ids": self.batch_ids,
            "weights_sha256": model.weights_sha256(net),
            "value_head": self.head is not None,
        }


def record(stats: Stats, tokens: loss.Tokens, parts: loss.Parts, entropy: Tensor, first: bool, value_clipped=None) -> None:
    """Adds a row to the sums. The gap to the sampler is that of the start of the update, so only the first pass counts it
    (its sums and the count grow by the same tokens in later passes, with the same l_old)."""
    rho = (tokens.logprob_old - tokens.logprob_sampler).double()  # log of trainer over sampler
    stats.add(
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
        stats.low = min(stats.low, parts.ratio.min().item())
        stats.high = max(stats.high, parts.ratio.max().item())
        if first:
            stats.gap = max(stats.gap, rho.abs().max().item())


def copy_state(state):
    """A deep copy of an optimizer's state dictionary."""
    if isinstance(state, Tensor):
        return state.detach().clone()
    if isinstance(state, dict):
        return {k: copy_state(v) for k, v in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(copy_state(v) for v in state)
    return state


def resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def config_dict(config) -> dict:
    return dataclasses.asdict(config)
