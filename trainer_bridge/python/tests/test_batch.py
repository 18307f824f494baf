"""Batch files: the schema text holds, and what is damaged is refused with its place."""

from pathlib import Path

import pyarrow as pa
import pytest
from conftest import rows_for, write_batch

from milepost_trainer import batch
from milepost_trainer.errors import TrainerError

PROTO = Path(__file__).parents[2] / "proto"


def test_schema_is_that_of_the_text():
    lines = [x for x in (PROTO / "batch.schema").read_text().splitlines() if x and not x.startswith("#")]
    assert batch.describe(batch.VALUED.append(batch.ROUTED)) == ", ".join(x.removesuffix(" optional") for x in lines)
    assert batch.describe(batch.SCHEMA) == ", ".join(x for x in lines if not x.endswith(" optional"))


def test_hash_is_that_of_the_texts():
    import hashlib

    from milepost_trainer.pb import schema

    both = (PROTO / "trainer.proto").read_bytes() + (PROTO / "batch.schema").read_bytes()
    assert hashlib.sha256(both).hexdigest() == schema.SCHEMA_HASH


def test_round_trip(tiny, tmp_path):
    rows = rows_for(tiny, [4, 9])
    digest = write_batch(tmp_path / "b.arrow", rows)
    for got, want in zip(batch.load(str(tmp_path / "b.arrow"), digest), rows, strict=True):
        assert got.episode == want["episode"] and got.tokens.tolist() == want["tokens"]
        assert got.mask.tolist() == want["mask"] and got.versions.tolist() == want["versions"]
        assert got.advantages.tolist() == want["advantages"]
        assert got.logprobs.tolist() == pytest.approx(want["logprobs"])


def test_damage_is_corrupt(tiny, tmp_path):
    path = tmp_path / "b.arrow"
    digest = write_batch(path, rows_for(tiny, [4]))
    with pytest.raises(TrainerError, match="SHA-256") as e:
        batch.load(str(path), "0" * 64)
    assert e.value.kind == "corrupt"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(TrainerError) as e:
        batch.load(str(path), digest)
    assert e.value.kind == "corrupt"
    with pytest.raises(TrainerError, match="no Arrow IPC file"):
        batch.load(str(path), batch.sha256_of(str(path)))
    path.write_bytes(b"")
    with pytest.raises(TrainerError, match="cannot be mapped"):
        batch.load(str(path), digest)


def test_another_schema_is_corrupt(tmp_path):
    path = tmp_path / "b.arrow"
    table = pa.table({"tokens": [[1]]})
    with pa.OSFile(str(path), "wb") as f, pa.ipc.new_file(f, table.schema) as w:
        w.write_table(table)
    with pytest.raises(TrainerError, match=r"has schema .*; allowed: \[episode: utf8"):
        batch.load(str(path), batch.sha256_of(str(path)))


def test_optional_columns_come_together(tiny, tmp_path):
    rows = rows_for(tiny, [4, 9])
    for r in rows:
        r["values"], r["returns"] = [0.25] * len(r["tokens"]), [1.0] * len(r["tokens"])
    digest = write_batch(tmp_path / "b.arrow", rows)
    got = batch.load(str(tmp_path / "b.arrow"), digest)
    assert got[1].values.tolist() == rows[1]["values"] and got[1].returns.tolist() == rows[1]["returns"]
    assert batch.load(str(tmp_path / "p.arrow"), write_batch(tmp_path / "p.arrow", rows_for(tiny, [4])))[0].values is None
    rows[1]["returns"] = [1.0]
    digest = write_batch(tmp_path / "b.arrow", rows)
    with pytest.raises(TrainerError, match=r"row 1.*returns has 1 elements; allowed: 9"):
        batch.load(str(tmp_path / "b.arrow"), digest)
    half = pa.schema([*batch.SCHEMA, batch.VALUED.field("values")])
    with pa.OSFile(str(tmp_path / "h.arrow"), "wb") as f, pa.ipc.new_file(f, half) as w:
        w.write_table(pa.Table.from_pylist(rows, schema=half))
    with pytest.raises(TrainerError, match="behind that values and returns"):
        batch.load(str(tmp_path / "h.arrow"), batch.sha256_of(str(tmp_path / "h.arrow")))


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("logprobs", [0.0], "logprobs has 1 elements; allowed: 4"),
        ("advantages", [0.0, float("nan"), 0.0, 0.0], "advantages holds a number that is not finite"),
        ("mask", [True] * 4, "mask trains element 0"),
        ("mask", None, "mask is null"),
        ("tokens", [], "tokens is empty"),
    ],
)
def test_bad_rows_name_row_and_field(tiny, tmp_path, field, value, words):
    rows = rows_for(tiny, [5, 4])
    rows[1][field] = value
    digest = write_batch(tmp_path / "b.arrow", rows)
    with pytest.raises(TrainerError, match=f"row 1.*'e1'.*{words}") as e:
        batch.load(str(tmp_path / "b.arrow"), digest)
    assert e.value.kind == "invalid"
