"""A tiny model, its demonstrations, and batches, shared by the tests."""

import json

import pyarrow as pa
import pytest
import torch

from milepost_trainer import batch, model, trainer

ADDED = ["<tool_call>", "</tool_call>"]
torch.set_num_threads(1)


def conversation(i: int) -> list[dict]:
    call = json.dumps({"name": "read_file", "arguments": {"path": f"m{i % 5}.py", "line": i}})
    return [
        {"role": "system", "content": "You repair code."},
        {"role": "user", "content": f"Fix add_{i % 7}: it returns a - b, not a + b."},
        {"role": "assistant", "content": f"<tool_call>\n{call}\n</tool_call>"},
        {"role": "tool", "content": "def add(a, b):\n    return a - b\n"},
        {"role": "assistant", "content": "Done."},
    ]


@pytest.fixture(scope="session")
def demos(tmp_path_factory):
    path = tmp_path_factory.mktemp("demos") / "demos.jsonl"
    path.write_text("".join(json.dumps({"id": f"d{i}", "messages": conversation(i)}) + "\n" for i in range(24)))
    return str(path)


@pytest.fixture(scope="session")
def model_dir(tmp_path_factory, demos):
    out = str(tmp_path_factory.mktemp("models") / "tiny")
    shape = model.Shape(
        vocab_size=330, layers=2, width=32, heads=4, key_value_heads=2, mlp_width=64,
        max_context=512, rope_theta=10000.0, seed=1, added_tokens=ADDED,
    )  # fmt: skip
    model.create(demos, out, shape)
    return out


@pytest.fixture
def tiny(model_dir):
    t = trainer.Trainer()
    t.init(model_dir, "", "float32", 5)
    return t


def random_sequences(lengths, vocab=300, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, vocab, (n,), generator=generator) for n in lengths]


def write_batch(path, rows: list[dict], metadata: dict | None = None) -> str:
    """Writes rows of python lists, with the optional columns where the first row has them; returns the SHA-256."""
    schema = batch.VALUED if rows and "values" in rows[0] else batch.SCHEMA
    if rows and "routed_experts" in rows[0]:
        schema = schema.append(batch.ROUTED).with_metadata(metadata)
    table = pa.Table.from_pylist(rows, schema=schema)
    with pa.OSFile(str(path), "wb") as f, pa.ipc.new_file(f, schema) as w:
        w.write_table(table)
    return batch.sha256_of(str(path))


def rows_for(t: trainer.Trainer, lengths, advantage=lambda i: 1.0 if i % 2 == 0 else -1.0, shift=0.0, seed=0) -> list[dict]:
    """On-policy rows (up to `shift` in the sampler's logprobs) whose second halves are trained."""
    rows = []
    for i, s in enumerate(random_sequences(lengths, seed=seed)):
        n = len(s)
        logprobs = t.score([s.tolist()], 1.0, False)[0]
        trained = [k >= max(1, n // 2) for k in range(n)]
        rows.append(
            {
                "episode": f"e{i}",
                "tokens": s.tolist(),
                "logprobs": [x + shift if m else 0.0 for x, m in zip(logprobs.tolist(), trained, strict=True)],
                "versions": [3 if m else -1 for m in trained],
                "mask": trained,
                "advantages": [advantage(i) if m else 0.0 for m in trained],
            }
        )
    return rows
