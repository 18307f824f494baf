"""Several sequences in one row, attention kept apart, and the logprobs of chosen tokens.

A row is a plain concatenation [1, L] of whole sequences: no padding, position ids restart with each, and attention runs
segment by segment with the causal kernel. So no [L, L] mask exists, no work is spent across sequences, and the result
is that of each sequence alone. The language model head runs on the needed positions only, in chunks where the
vocabulary is large.
"""

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface

from milepost_trainer import routing
from milepost_trainer.context import Context
from milepost_trainer.errors import invalid

ATTENTION = "milepost_packed"
HEAD_ELEMENTS = 1 << 25  # logits held at a time, rows * vocabulary; above, the head runs in recomputed chunks


def packed_attention(module, query, key, value, attention_mask, dropout=0.0, scaling=None, segments=None, context=None, **kwargs):
    """query [1, H, L, D], key and value [1, Hkv, L, D], segments: lengths that sum to L -> [1, L, H, D].

    Without segments, each row of the batch is one sequence. With a context, all but segments are of this rank's stretch.
    """
    assert attention_mask is None, "the packed attention takes whole causal sequences only"
    for name in ("softcap", "s_aux"):  # a cap on the scores; sinks
        if kwargs.get(name) is not None:
            raise invalid(
                f"{type(module).__name__} wants {name}, which packed attention does not compute; allowed: plain softmax"
            )
    if context is not None:
        query, key, value = context.query_key_value(query, key, value)
    segments = segments or [query.shape[2]]
    window = kwargs.get("sliding_window")
    assert not window or max(segments) <= window, f"a sequence of {max(segments)} tokens exceeds the window of {window}"
    gqa = query.shape[1] != key.shape[1]
    parts = zip(query.split(segments, 2), key.split(segments, 2), value.split(segments, 2), strict=True)
    out = [
        F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, scale=scaling, is_causal=True, enable_gqa=gqa)
        for q, k, v in parts
    ]
    joined = torch.cat([o.transpose(1, 2) for o in out], 1)
    return joined if context is None else context.tokens(joined), None


AttentionInterface.register(ATTENTION, packed_attention)


@dataclass
class Row:
    """Some whole sequences in a row. `source` names, for each wanted token, where its values lie in the caller's list."""

    members: list[int]  # indices of the sequences
    tokens: Tensor  # [1, L] int64
    positions: Tensor  # [1, L] int64, restart at 0
    segments: list[int]  # lengths
    where: Tensor  # [M] int64: the places in the row that predict the wanted tokens
    targets: Tensor  # [M] int64: the wanted tokens
    sequence: Tensor  # [M] int64: index into members
    time: Tensor  # [M] int64: index t of the wanted token in its sequence
    routes: Tensor | None = None  # [L, layers, K] int16: recorded experts (routing.py); None = the model routes
    context: Context | None = None  # the row is a stretch of one (context.py)

    def to(self, device: torch.device) -> "Row":
        """The row on a device; itself where it is there."""
        if self.tokens.device == device:
            return self
        moved = {f.name: v.to(device) for f in dataclasses.fields(self) if isinstance(v := getattr(self, f.name), Tensor)}
        return dataclasses.replace(self, **moved)


def plan(lengths: list[int], limit: int) -> list[list[int]]:
    """Groups sequences into rows of at most `limit` tokens (a longer one goes alone), longest first, first fit.

    Every index appears once; the order depends on the lengths alone.
    """
    rows: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        for r, free in enumerate(room):
            if lengths[i] <= free:
                rows[r].append(i)
                room[r] -= lengths[i]
                break
        else:
            rows.append([i])
            room.append(limit - lengths[i])
    return rows


def build(sequences: list[Tensor], wanted: list[Tensor], members: list[int], routes: list[Tensor] | None = None) -> Row:
    """sequences: [T] int64 each; wanted: [T] bool each, true where the token's logprob is needed (never at 0); routes:
    [R, layers, K] each, the recorded experts of the first R tokens."""
    segments = [len(sequences[i]) for i in members]
    where, targets, sequence, time = [], [], [], []
    start = 0
    for k, i in enumerate(members):
        t = wanted[i].nonzero().flatten()
        where.append(start + t - 1)
        targets.append(sequences[i][t])
        sequence.append(torch.full_like(t, k))
        time.append(t)
        start += segments[k]
    return Row(
        members=list(members),
        tokens=torch.cat([sequences[i] for i in members])[None],
        positions=torch.cat([torch.arange(n) for n in segments])[None],
        segments=segments,
        where=torch.cat(where),
        targets=torch.cat(targets),
        sequence=torch.cat(sequence),
        time=torch.cat(time),
        routes=None if routes is None else routing.pad([routes[i] for i in members], segments),
    )


def head_logprobs(head, hidden: Tensor, targets: Tensor, temperature: float, entropy: bool) -> tuple[Tensor, Tensor]:
    """hidden [M, W], targets [M] -> logprob [M] float32, entropy [M] float32 without gradient (empty if not asked)."""
    logits = head(hidden).float()  # [M, V]
    if temperature != 1:
        logits = logits / temperature
    logprobs = F.log_softmax(logits, -1)
    with torch.no_grad():
        uncertainty = -(logprobs.exp() * logprobs).sum(-1) if entropy else logprobs.new_empty(0)
    return logprobs.gather(1, targets[:, None]).squeeze(1), uncertainty


def row_hidden(model, row: Row) -> Tensor:
    """[M, W] last hidden states that predict the wanted tokens of a row; gradients as the caller's context allows."""
    more = {name: v for name in ("routes", "context") if (v := getattr(row, name)) is not None}
    hidden = model.model(
        input_ids=row.tokens, position_ids=row.positions, attention_mask=None, use_cache=False, segments=row.segments, **more
    ).last_hidden_state[0]  # [L, W]
    return hidden[row.where]


def row_logprobs(model, row: Row, temperature: float = 1.0, entropy: bool = False) -> tuple[Tensor, Tensor]:
    """Logprob and, where asked, entropy [M] of the wanted tokens of a row; gradients as the caller's context allows."""
    return hidden_logprobs(model, row_hidden(model, row), row, temperature, entropy)


def hidden_logprobs(model, hidden: Tensor, row: Row, temperature: float, entropy: bool) -> tuple[Tensor, Tensor]:
    """row_logprobs from the row's hidden states."""
    head = model.lm_head
    chunk = max(1, HEAD_ELEMENTS // head.out_features)
    if len(hidden) <= chunk:
        return head_logprobs(head, hidden, row.targets, temperature, entropy)
    parts = [
        checkpoint(head_logprobs, head, h, t, temperature, entropy, use_reentrant=False)
        for h, t in zip(hidden.split(chunk), row.targets.split(chunk), strict=True)
    ]
    return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])
