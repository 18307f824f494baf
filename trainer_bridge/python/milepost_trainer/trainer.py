"""The trainer's state and the update step.

Invariants. Only one thread calls in here, and with several ranks all of them make the same calls. A changing operation is
all or nothing: after an exception, weights (the value head's among them), optimizer and counters are what they were.
`batch_ids` names every batch the weights hold, in order, so a batch is never trained twice in the lineage of these weights.

Every rank reads the whole batch and computes the passes of its share of the sequences; whatever is divided by (trained
tokens, sequences) is that of the whole optimizer step, so the number of ranks changes rounding alone.
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from milepost_trainer import batch, critic, lora, loss, model, optim, pack, policy
from milepost_trainer.errors import TrainerError, invalid
from milepost_trainer.options import PLAIN, Options
from milepost_trainer.prepared import Prepared, prepare
from milepost_trainer.ranks import Ranks
from milepost_trainer.stats import GuardConfig, Stats

SCORE_TOKENS = 8192  # of one forward pass of `score`


@dataclass(frozen=True)
class UpdateConfig:
    loss: loss.LossConfig
    optimizer: optim.OptimizerConfig
    warmup: int = 0  # updates
    epochs: int = 1
    minibatches: int = 1  # optimizer steps a pass; at most one a trained sequence
    minibatch_sequences: int = 0  # where not 0: as many steps as give about so many trained sequences each
    micro_tokens: int = 8192
    temperature: float = 1.0
    value: critic.ValueConfig = field(default_factory=critic.ValueConfig)  # read where there is a value head
    guard: GuardConfig = field(default_factory=GuardConfig)

    def __post_init__(self):
        for name, low in (("warmup", 0), ("epochs", 1), ("minibatches", 1), ("minibatch_sequences", 0), ("micro_tokens", 1)):
            if getattr(self, name) < low:
                raise invalid(f"{name} is {getattr(self, name)}; allowed: {low} or more")
        if not (math.isfinite(self.temperature) and self.temperature > 0):
            raise invalid(f"temperature is {self.temperature}; allowed: above 0")

    def steps(self, sequences: int) -> int:
        """Optimizer steps of one pass over so many trained sequences."""
        wanted = math.ceil(sequences / self.minibatch_sequences) if self.minibatch_sequences else self.minibatches
        return min(wanted, sequences)


class Trainer:
    def __init__(self, group: Ranks | None = None):
        self.ranks = group or Ranks()
        self.policy: policy.Policy | None = None
        self.reference: policy.Policy | lora.Base | None = None
        self.tokenizer = None
        self.tokenizer_files: dict[str, bytes] = {}
        self.optimizer = None  # of the policy; its state is empty before the first step
        self.dtype = "float32"
        self.seed = 0
        self.updates = 0
        self.batch_ids: list[str] = []

    @property
    def net(self):
        """The causal model; None where none is loaded."""
        return None if self.policy is None else self.policy.net

    @property
    def head(self) -> critic.ValueHead | None:
        return None if self.policy is None else self.policy.head

    # --- loading ---

    def init(self, path, reference, dtype, seed, value_head=False, recompute=False, options: Options = PLAIN) -> None:
        """Starts from a model directory. recompute: activation checkpointing, less memory for a third more arithmetic."""
        if dtype not in model.DTYPES:
            raise invalid(f"dtype is {dtype!r}; allowed: {', '.join(model.DTYPES)}")
        loaded, placed = self.load_model(path, value_head, recompute, options, seed)
        self.reference = self.load_reference(reference, placed)
        self.adopt(loaded, placed, dtype, seed)
        policy.release(self.ranks)
        torch.manual_seed(seed)

    def adopt(self, loaded: model.Loaded, placed: policy.Policy, dtype: str, seed: int) -> None:
        """Takes a placed policy with its tokenizer as the one that is trained, with a fresh optimizer and no updates."""
        self.policy, self.tokenizer, self.tokenizer_files = placed, loaded.tokenizer, loaded.files
        self.dtype, self.seed, self.updates, self.batch_ids = dtype, seed, 0, []
        self.fresh_optimizer()

    def load_model(self, path, value_head=False, recompute=False, options: Options = PLAIN, seed=0):
        """Reads a model directory; with several ranks the first alone reads weights, and the others get their shards."""
        group, weights = self.ranks, None
        with group.together():
            loaded = model.load(path, options.lora, seed) if group.first else model.skeleton(path, options.lora)
            if group.world > 1 and group.first:
                weights = loaded.model.state_dict()
                loaded = model.skeleton(path, options.lora)
        placed = policy.place(policy.equip(loaded.model, value_head, recompute, options, group), group, weights)
        if loaded.adapter is not None:
            base = policy.sha256_of(lora.base_tensors(placed.tensors()), group)
            placed.adapter = lora.Adapter(loaded.adapter, os.path.abspath(lora.base_of(path, options.lora)), base)
        return loaded, placed

    def load_reference(self, path: str, placed: policy.Policy) -> policy.Policy | lora.Base | None:
        """The model of a directory, without gradient, for the KL to it; None where the path is empty. Below an adapter it is
        there already."""
        if not path:
            return None
        if placed.adapter is not None and os.path.realpath(path) == os.path.realpath(placed.adapter.base):
            return lora.Base(placed)
        loaded, reference = self.load_model(path, options=placed.options.of_reference())
        if (found := loaded.model.config.vocab_size) != (wanted := placed.net.config.vocab_size):
            raise invalid(f"reference {path} has vocabulary {found}; allowed: {wanted}, the model's")
        return reference.requires_grad_(False)

    def fresh_optimizer(self) -> None:
        self.optimizer = optim.make(self.net, self.head)

    def require(self):
        if self.net is None:
            raise invalid("no model is loaded; call Init or Load first")
        return self.net

    def autocast(self):
        # Without the cache of casts: it holds a copy of every weight for as long as the context lasts, across optimizer steps.
        on = self.dtype == "bfloat16"
        return torch.autocast(self.ranks.device.type, torch.bfloat16, enabled=on, cache_enabled=False)

    # --- the update step ---

    def update(self, batch_id: str, path: str, sha256: str, config: UpdateConfig) -> dict:
        """Trains on one batch; returns the metrics named in UpdateReply.

        l_old comes from the trainer's own forward pass at the start. Where the update is a single optimizer step that
        rejects nothing, that pass and the training pass are the same, and the latter serves for both.
        """
        started = time.perf_counter()
        self.require()
        if not batch_id:
            raise invalid("batch_id is empty; allowed: an id that is unique in the run")
        if batch_id in self.batch_ids:
            raise TrainerError(
                "conflict", f"batch {batch_id} is held by these weights already (update {self.batch_ids.index(batch_id) + 1})"
            )
        if config.loss.kl != "none" and self.reference is None:
            raise invalid(f"loss.kl is {config.loss.kl} but no reference model is loaded; name one in Init, or set kl none")
        with self.ranks.together():
            sequences = self._read(path, sha256)
            self._check_values(sequences)
            prepared = prepare(sequences, self.policy.replay is not None)
        lr = config.optimizer.lr * optim.schedule("constant", self.updates, 1, config.warmup, 1.0)
        undo = self.snapshot() if config.epochs * config.steps(len(prepared.ids)) > 1 else self.forget_gradients
        try:
            with self.autocast():
                metrics = self._train(prepared, config, lr)
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

    def _read(self, path: str, sha256: str) -> list[batch.Sequence]:
        """A batch that fits the model."""
        sequences, config = batch.load(path, sha256), self.net.config
        batch.check_fits(sequences, config.vocab_size, model.max_context(config))
        if self.policy.replay is not None:
            self.policy.replay.check(sequences)
        return sequences

    def _check_values(self, sequences: list[batch.Sequence]) -> None:
        """Head and columns go together: neither an untrained head nor returns that nothing learns."""
        valued = bool(sequences) and sequences[0].values is not None
        if valued and self.head is None:
            raise invalid("the batch has values and returns but there is no value head; allowed: Init or Load with value_head")
        if sequences and not valued and self.head is not None:
            raise invalid(
                "the batch has no values and returns, which the value head needs; allowed: those of an estimator with values"
            )

    def _train(self, prepared: Prepared, config: UpdateConfig, lr: float) -> dict:
        started, count = time.perf_counter(), len(prepared.ids)
        rejecting = config.loss.reject != "none"
        if rejecting or config.epochs * config.steps(count) > 1:
            prepared.old = self._frozen(self.policy, prepared, config)
            for name, logprobs in zip(prepared.names, prepared.old, strict=True):
                if not logprobs.isfinite().all():  # rejection would drop such a sequence without a word
                    raise TrainerError("internal", f"{name}: a logprob is not finite")
        if config.loss.kl != "none":
            prepared.reference = self._frozen(self.reference, prepared, config)
        kept = self._kept(prepared, config.loss) if rejecting else list(range(count))
        score_seconds = time.perf_counter() - started

        optim.configure(self.optimizer, config.optimizer, lr, config.value.lr * lr / config.optimizer.lr)
        stats, losses, norms = Stats(), {"policy": 0.0, "kl": 0.0, "value": 0.0}, []
        for epoch in range(config.epochs):
            for members in self._minibatches(kept, config.steps(len(kept)), epoch):
                norms.append(self._optimizer_step(prepared, members, config, stats, losses, first=epoch == 0))
        stats, steps = stats.merged(self.ranks), max(len(norms), 1)
        losses = dict(zip(losses, self.ranks.sum(*losses.values()), strict=True))
        metrics = self._value_metrics(prepared, kept, stats, losses["value"] / steps) | stats.routes()
        return metrics | {
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

    def _frozen(self, net: policy.Policy, prepared: Prepared, config: UpdateConfig) -> list[Tensor]:
        """[K] a sequence: logprobs of the trained tokens without gradient."""
        routes = prepared.routes if net is self.policy else None  # a reference is another policy, with routes of its own
        return policy.evaluate(
            net, prepared.ids, prepared.wanted, config.micro_tokens, config.temperature, self.ranks, routes=routes
        )

    def _optimizer_step(self, prepared, members, config, stats: Stats, losses: dict, first: bool) -> float:
        """One optimizer step over `members`; its denominators are those of all of them, whatever the micro-batches and
        ranks."""
        whole = loss.Denominators(float(sum(len(prepared.advantage[i]) for i in members)), float(len(members)))
        value = "" if self.head is None else "detached" if config.value.detach else "attached"
        total = 0.0
        limit, group = config.micro_tokens, self.ranks
        for p in policy.passes(self.policy, prepared.ids, prepared.wanted, members, limit, group, prepared.routes):
            row = p.row
            logprob, entropy, values = self.policy(row, config.temperature, entropy=True, value=value)
            old = logprob.detach() if prepared.old is None else torch.cat([prepared.old[i] for i in row.members])
            old = old.to(logprob.device)
            tokens = prepared.tokens(row, old)
            share, parts = loss.compute(config.loss, tokens, logprob, whole)
            value_share, value_clipped = self._value_loss(prepared, row, config, values, whole)
            if value_share is not None:
                share = share + config.value.coef * value_share
            policy.backward(share if p.trains else share * 0.0, group)
            if not p.tells:
                continue
            stats.record_routes(row, self.policy.replay)
            total += share.item()
            losses["policy"] += parts.policy.item()
            losses["kl"] += parts.kl.item()
            losses["value"] += 0.0 if value_share is None else value_share.item()
            stats.record(tokens, parts, entropy, value_clipped)
            if first:
                stats.record_gap(prepared.names, row, tokens)
        config.guard.check(stats, group)
        heads = () if self.head is None else (self.head,)
        (total,), most = group.sum(total), config.guard.max_grad_norm
        return optim.step(self.net, self.optimizer, config.optimizer.clip_norm, total, *heads, max_norm=most)

    def _value_loss(self, prepared: Prepared, row: pack.Row, config: UpdateConfig, values: Tensor | None, whole):
        """The row's share of the value loss, without its coefficient, and where it was clipped [M]; None without a head."""
        if values is None:
            return None, None
        streams = [torch.cat([s[i] for i in row.members]).to(values.device) for s in (prepared.values, prepared.returns)]
        per_token, clipped = critic.loss(config.value, values, *streams)
        return per_token.sum() / max(whole.tokens, 1), clipped

    def _kept(self, prepared: Prepared, config: loss.LossConfig) -> list[int]:
        """Indices of the sequences that rejection leaves."""
        row = pack.build(prepared.ids, prepared.wanted, list(range(len(prepared.ids)))) if prepared.ids else None
        if row is None:
            return []
        tokens = loss.reject(config, prepared.tokens(row, torch.cat(prepared.old)))
        return [i for i, n in enumerate(tokens.per_sequence(tokens.mask).tolist()) if n > 0]

    def _minibatches(self, members: list[int], count: int, epoch: int) -> list[list[int]]:
        """Parts of about equal size; shuffled, where there are several, by seed, update and epoch alone."""
        if count <= 1:
            return [members] if members else []
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + self.updates) * 1_009 + epoch)
        order = [members[i] for i in torch.randperm(len(members), generator=generator).tolist()]
        return [order[k::count] for k in range(count)]

    # --- all or nothing ---

    def snapshot(self) -> Callable[[], None]:
        """Copies weights and optimizer state; the result puts them back. An update of a single step needs none: it changes
        weights in its last act only, and `forget_gradients` undoes what came before."""
        weights, state = copy_state(self.policy.trained()), copy_state(self.optimizer.state_dict())

        def undo():
            self.forget_gradients()
            self.policy.load_state_dict(weights, strict=False)  # what is frozen is not in it
            self.fresh_optimizer()
            self.optimizer.load_state_dict(state)

        return undo

    def forget_gradients(self) -> None:
        self.policy.zero_grad(set_to_none=True)

    # --- reading ---

    def score(self, sequences: list[list[int]], temperature: float, reference: bool) -> list[Tensor]:
        """[T] float32 a sequence."""
        net, scored = self.require(), self.reference if reference else self.policy
        if scored is None:
            raise invalid("no reference model is loaded; name one in Init")
        if not (math.isfinite(temperature) and temperature > 0):
            raise invalid(f"temperature is {temperature}; allowed: above 0")
        vocab, context = net.config.vocab_size, model.max_context(net.config)
        for i, s in enumerate(sequences):
            if not 0 < len(s) <= context:
                raise invalid(f"sequence {i} has {len(s)} tokens; allowed: 1 to {context}")
            if not all(0 <= t < vocab for t in s):
                raise invalid(f"sequence {i} holds a token outside the vocabulary; allowed: 0 to {vocab - 1}")
        ids = [torch.tensor(s) for s in sequences]
        wanted = [torch.arange(len(s)) > 0 for s in ids]
        with self.autocast():
            known = policy.evaluate(scored, ids, wanted, SCORE_TOKENS, temperature, self.ranks)
        return [torch.cat([torch.zeros(1), k]) for k in known]

    def values(self, path: str, sha256: str, micro_tokens: int) -> list[Tensor]:
        """[K] float32 a row of the batch file: the head's value at each trained token. Nothing changes."""
        self.require()
        if self.head is None:
            raise invalid("there is no value head; allowed: Init or Load with value_head")
        if micro_tokens < 1:
            raise invalid(f"micro_tokens is {micro_tokens}; allowed: 1 or more")
        with self.ranks.together():
            sequences = self._read(path, sha256)
            prepared = prepare(sequences, self.policy.replay is not None)
        out = [torch.zeros(0) for _ in sequences]
        with self.autocast():
            known = policy.evaluate(
                self.policy, prepared.ids, prepared.wanted, micro_tokens, 1.0, self.ranks, value=True, routes=prepared.routes
            )
        for i, values in zip((i for i, s in enumerate(sequences) if s.mask.any()), known, strict=True):
            out[i] = values
        for i, v in enumerate(out):
            if not v.isfinite().all():
                raise TrainerError("internal", f"row {i} (episode {sequences[i].episode!r}): a value is not finite")
        return out

    def info(self) -> dict:
        """What is loaded; all ranks call it."""
        net = self.require()
        return {
            "parameters": sum(p.numel() for p in net.parameters()),
            "vocab_size": net.config.vocab_size,
            "max_context": model.max_context(net.config),
            "dtype": self.dtype,
            "updates": self.updates,
            "batch_ids": self.batch_ids,
            "weights_sha256": policy.weights_sha256(self.policy, self.ranks),
            "value_head": self.head is not None,
        }


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
