"""Training batches: Arrow IPC files of the schema in proto/batch.schema, verified by SHA-256 and mapped."""

import hashlib
import math
import mmap
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from milepost_trainer.errors import TrainerError, invalid

SCHEMA = pa.schema(
    [
        ("episode", pa.utf8()),
        ("tokens", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("versions", pa.list_(pa.int32())),
        ("mask", pa.list_(pa.bool_())),
        ("advantages", pa.list_(pa.float32())),
    ]
)

# The optional columns: values and returns, together, for a trainer with a value head, and behind them the routed experts.
VALUED = pa.schema([*SCHEMA, ("values", pa.list_(pa.float32())), ("returns", pa.list_(pa.float32()))])
ROUTED = pa.field("routed_experts", pa.large_binary())


@dataclass
class Sequence:
    """One row: all tensors [T]; element t speaks of token t given the ones before it. Some lie in the mapped file: they must
    not be written to."""

    episode: str
    tokens: Tensor  # int64
    logprobs: Tensor  # float32, the sampler's
    versions: Tensor  # int32, -1 where not sampled
    mask: Tensor  # bool, trained; never at 0
    advantages: Tensor  # float32
    values: Tensor | None = None  # float32, the value head's before the update; None where the batch has none
    returns: Tensor | None = None  # float32, what the value head learns
    routes: Tensor | None = None  # [R, layers, top_k], R <= T: experts that the sampler chose for the first R tokens


def sha256_of(path: str) -> str:
    with open(path, "rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def load(path: str, sha256: str) -> list[Sequence]:
    """Reads a batch whose bytes have this hash. The hash is taken of the very mapping that is then parsed."""
    try:
        with open(path, "rb") as f:
            mapped = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise TrainerError("not_found", f"batch file {path} does not exist") from None
    except (OSError, ValueError) as e:  # ValueError: an empty file cannot be mapped
        raise TrainerError("corrupt", f"batch file {path} cannot be mapped: {e}") from e
    found = hashlib.sha256(mapped).hexdigest()
    if found != sha256:
        raise TrainerError("corrupt", f"batch file {path} has SHA-256 {found}; allowed: {sha256 or 'the one of the call'}")
    return parse(path, mapped)


def parse(path: str, mapped) -> list[Sequence]:
    """The rows of a mapped file whose hash is right; path is for errors."""
    try:
        table = pa.ipc.open_file(pa.py_buffer(mapped)).read_all()
    except pa.ArrowInvalid as e:
        raise TrainerError("corrupt", f"batch file {path} is no Arrow IPC file: {e}") from e
    # Not equals: who may be null differs between writers.
    allowed = [s for base in (SCHEMA, VALUED) for s in (base, base.append(ROUTED))]
    if describe(table.schema) not in map(describe, allowed):
        raise TrainerError(
            "corrupt",
            f"batch file {path} has schema [{describe(table.schema)}]; allowed: [{describe(SCHEMA)}], "
            "and behind that values and returns, list<float32> each, and routed_experts, large_binary",
        )
    shape = routes_shape(path, table.schema)
    return [sequence(path, i, table, shape) for i in range(table.num_rows)]


def routes_shape(path: str, schema: pa.Schema) -> tuple[int, int, int] | None:
    """Layers, experts a token and bytes an id, as the file declares them; None where it has no routes."""
    if ROUTED.name not in schema.names:
        return None
    declared = (schema.metadata or {}).get(ROUTED.name.encode(), b"").decode()
    try:
        layers, top_k, size = map(int, declared.split(","))
    except ValueError:
        layers = top_k = size = 0
    if layers < 1 or top_k < 1 or size not in (1, 2):
        raise TrainerError(
            "corrupt", f"batch file {path} declares routed_experts as {declared!r}; allowed: LAYERS,TOP_K,BYTES with 1 or 2 bytes"
        )
    return layers, top_k, size


def describe(schema: pa.Schema) -> str:
    """name: type, comma separated, as in proto/batch.schema (where each has a line)."""
    names = {
        pa.utf8(): "utf8",
        pa.int32(): "int32",
        pa.float32(): "float32",
        pa.bool_(): "bool",
        pa.large_binary(): "large_binary",
    }

    def word(t):
        return f"list<{word(t.value_type)}>" if pa.types.is_list(t) else names.get(t, str(t))

    return ", ".join(f"{f.name}: {word(f.type)}" for f in schema)


def sequence(path: str, i: int, table: pa.Table, shape: tuple[int, int, int] | None) -> Sequence:
    def bad(field, what):
        return invalid(f"batch file {path}, row {i} (episode {episode!r}): {field} {what}")

    episode = table["episode"][i].as_py()
    columns = {}
    for name in table.schema.names[1:]:
        if name == ROUTED.name:
            continue
        values = table[name][i].values
        if values is None or values.null_count:
            raise bad(name, "is null or holds nulls; allowed: a list without nulls")
        # Arrow packs booleans to bits; everything else stays in the mapped file.
        packed = pa.types.is_boolean(values.type)
        columns[name] = torch.from_numpy(values.to_numpy(zero_copy_only=False)) if packed else torch.from_dlpack(values)
    n = len(columns["tokens"])
    if n == 0:
        raise bad("tokens", "is empty; allowed: one token or more")
    for name, values in columns.items():
        if len(values) != n:
            raise bad(name, f"has {len(values)} elements; allowed: {n}, as many as tokens")
    for name in ("logprobs", "advantages", "values", "returns"):
        # The least and the greatest are not a number where any is not; isfinite would write a mask first.
        if name in columns and not all(math.isfinite(x) for x in columns[name].aminmax()):
            raise bad(name, "holds a number that is not finite; allowed: finite numbers")
    if columns["mask"][0]:
        raise bad("mask", "trains element 0, which no token precedes; allowed: false there")
    columns["tokens"] = columns["tokens"].long()
    if shape is not None:
        layers, top_k, size = shape
        packed = table[ROUTED.name][i].as_buffer()
        if packed is None or packed.size % (layers * top_k * size) or packed.size > n * layers * top_k * size:
            raise bad(
                ROUTED.name, f"is null or no whole number of tokens, {layers} by {top_k} ids of {size} bytes each, up to {n}"
            )
        ids = np.frombuffer(packed, np.uint8 if size == 1 else np.dtype("<i2")).reshape(-1, layers, top_k)
        columns["routes"] = torch.tensor(ids)
    return Sequence(episode=episode, **columns)


def check_fits(sequences: list[Sequence], vocab_size: int, max_context: int) -> None:
    for i, s in enumerate(sequences):
        worst = s.tokens.max().item()
        if worst >= vocab_size or s.tokens.min() < 0:
            raise invalid(f"row {i} (episode {s.episode!r}): tokens has {worst}; allowed: 0 to {vocab_size - 1}, the vocabulary")
        if len(s.tokens) > max_context:
            raise invalid(f"row {i} (episode {s.episode!r}): {len(s.tokens)} tokens; allowed: {max_context}, the model's context")
