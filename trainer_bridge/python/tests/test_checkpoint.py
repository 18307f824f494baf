"""Checkpoints go on where they were; unfinished or damaged ones are refused; exports are plain model directories."""

import json
import os

import pytest
import torch
from conftest import rows_for
from safetensors.torch import load_file
from test_trainer import LENGTHS, config, same, update, weights
from transformers import AutoModelForCausalLM, AutoTokenizer

from milepost_trainer import __main__ as cli
from milepost_trainer import checkpoint, files, policy
from milepost_trainer.errors import TrainerError
from milepost_trainer.trainer import Trainer


def test_training_goes_on_identically(tiny, tmp_path):
    rows = rows_for(tiny, LENGTHS)
    update(tiny, tmp_path, rows, config(minibatches=3), "b1")
    checkpoint.save(tiny, str(tmp_path / "c"))
    update(tiny, tmp_path, rows, config(minibatches=3), "b2")
    other = Trainer()
    checkpoint.load(other, str(tmp_path / "c"), "")
    assert other.batch_ids == ["b1"] and other.updates == 1
    update(other, tmp_path, rows, config(minibatches=3), "b2")
    assert same(weights(tiny), weights(other))


def test_load_then_save_keeps_the_optimizer(tiny, tmp_path):
    rows = rows_for(tiny, LENGTHS)
    update(tiny, tmp_path, rows, config(), "b1")
    checkpoint.save(tiny, str(tmp_path / "a"))
    other = Trainer()
    checkpoint.load(other, str(tmp_path / "a"), "")
    checkpoint.save(other, str(tmp_path / "b"))
    third = Trainer()
    checkpoint.load(third, str(tmp_path / "b"), "")
    for t in (tiny, third):
        update(t, tmp_path, rows, config(), "b2")
    assert same(weights(tiny), weights(third))


def test_without_marker_or_with_damage_it_is_refused(tiny, tmp_path):
    path = tmp_path / "c"
    checkpoint.save(tiny, str(path))
    commit = json.loads((path / "COMMIT").read_text())
    assert set(commit["files"]) == set(files.walk(path)) - {"COMMIT"}
    shard = next((path / "state").glob("*.distcp"))
    shard.write_bytes(shard.read_bytes() + b"x")
    before = weights(tiny)
    with pytest.raises(TrainerError, match=r"state/.*\.distcp has SHA-256") as e:
        checkpoint.load(tiny, str(path), "")
    assert e.value.kind == "corrupt"
    (path / "COMMIT").unlink()
    with pytest.raises(TrainerError, match="no COMMIT"):
        checkpoint.load(tiny, str(path), "")
    with pytest.raises(TrainerError) as e:
        checkpoint.load(tiny, str(tmp_path / "none"), "")
    assert e.value.kind == "not_found" and same(before, weights(tiny))


def test_a_failed_save_keeps_the_old_one(tiny, tmp_path, monkeypatch):
    path = tmp_path / "c"
    checkpoint.save(tiny, str(path))
    before = (path / "COMMIT").read_bytes()
    update(tiny, tmp_path, rows_for(tiny, LENGTHS), config())
    monkeypatch.setattr(torch, "save", lambda *a: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(TrainerError):
        checkpoint.save(tiny, str(path))
    assert (path / "COMMIT").read_bytes() == before and sorted(os.listdir(tmp_path)) == ["b.arrow", "c"]
    monkeypatch.undo()
    checkpoint.save(tiny, str(path))
    assert json.loads((path / "trainer.json").read_text())["updates"] == 1 and sorted(os.listdir(tmp_path)) == ["b.arrow", "c"]


def test_replacing_swaps_whole_directories(tmp_path):
    (tmp_path / "d.tmp-999999999" / "x").mkdir(parents=True)  # of a process that was killed
    (tmp_path / "other.tmp-999999999").mkdir()
    for text in ("old", "new"):
        with files.directory(str(tmp_path / "d")) as tmp, open(os.path.join(tmp, text), "w") as f:
            f.write(text)
    assert sorted(os.listdir(tmp_path)) == ["d", "other.tmp-999999999"] and os.listdir(tmp_path / "d") == ["new"]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_export_is_a_plain_model(tiny, tmp_path, dtype):
    update(tiny, tmp_path, rows_for(tiny, LENGTHS), config())
    digest, size = checkpoint.export(tiny, str(tmp_path / "x"), dtype)
    state = load_file(tmp_path / "x" / "model.safetensors")
    assert "lm_head.weight" in state and "model.embed_tokens.weight" in state and size > 0
    assert {str(v.dtype) for v in state.values()} == {f"torch.{dtype}"}
    assert digest == policy.weights_sha256(tiny.policy, tiny.ranks)
    c = json.loads((tmp_path / "x" / "config.json").read_text())
    assert c["tie_word_embeddings"] is False and c["dtype"] == dtype and c["architectures"] == ["LlamaForCausalLM"]
    net = AutoModelForCausalLM.from_pretrained(tmp_path / "x", dtype=torch.float32)
    tok = AutoTokenizer.from_pretrained(tmp_path / "x")
    ids = tok("<|im_start|>user\nhi<|im_end|>", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        gap = (net(ids).logits - tiny.net(input_ids=ids, use_cache=False).logits).abs().max().item()
    assert gap < (1e-5 if dtype == "float32" else 0.1)
    assert tok.chat_template == tiny.tokenizer.chat_template


def test_weights_are_hashed_once_until_they_change(tiny, tmp_path, monkeypatch):
    hashed, whole = [], policy.sha256_of
    monkeypatch.setattr(policy, "sha256_of", lambda state, group: (hashed.append(1), whole(state, group))[1])
    first = tiny.info()["weights_sha256"]
    checkpoint.save(tiny, str(tmp_path / "c"))
    assert checkpoint.export(tiny, str(tmp_path / "x"), "")[0] == first and len(hashed) == 1
    update(tiny, tmp_path, rows_for(tiny, LENGTHS), config())
    second = tiny.info()["weights_sha256"]
    assert second != first and second == whole(tiny.policy.tensors(), tiny.ranks) and len(hashed) == 2
    checkpoint.load(tiny, str(tmp_path / "c"), "")
    assert tiny.info()["weights_sha256"] == first and len(hashed) == 3, "what was loaded is hashed, not believed"


def test_exports_differ_in_their_weights_alone(tiny, tmp_path):
    """A resumed run takes over a server that serves an earlier export: every other file has to be the same."""
    checkpoint.export(tiny, str(tmp_path / "a"), "")
    other = Trainer()
    other.init(str(tmp_path / "a"), "", "float32", 5)
    update(other, tmp_path, rows_for(other, LENGTHS), config(), "b1")
    checkpoint.export(other, str(tmp_path / "b"), "")
    checkpoint.save(other, str(tmp_path / "c"))
    third = Trainer()
    checkpoint.load(third, str(tmp_path / "c"), "")
    checkpoint.export(third, str(tmp_path / "d"), "")
    names = files.walk(tmp_path / "a")
    for made in ("b", "d"):
        assert files.walk(tmp_path / made) == names
        differing = [n for n in names if (tmp_path / "a" / n).read_bytes() != (tmp_path / made / n).read_bytes()]
        assert differing == ["model.safetensors"], made
    assert (tmp_path / "b" / "model.safetensors").read_bytes() == (tmp_path / "d" / "model.safetensors").read_bytes()


def test_init_of_a_checkpoint_names_the_way_out(tiny, tmp_path, capsys):
    """A checkpoint is no model directory; the export of it is, with the same weights and no history."""
    update(tiny, tmp_path, rows_for(tiny, LENGTHS), config(), "b1")
    checkpoint.save(tiny, str(tmp_path / "c"))
    other = Trainer()
    with pytest.raises(TrainerError, match=r"is a checkpoint.*milepost_trainer export") as e:
        other.init(str(tmp_path / "c"), "", "float32", 0)
    assert e.value.kind == "invalid" and other.net is None
    assert cli.main(["export", str(tmp_path / "c"), str(tmp_path / "m")]) == 0
    kept = (tmp_path / "m" / "config.json").stat().st_ino
    assert cli.main(["export", str(tmp_path / "c"), str(tmp_path / "m")]) == 1, "what is there stays"
    assert "exists; allowed" in capsys.readouterr().err and (tmp_path / "m" / "config.json").stat().st_ino == kept
    other.init(str(tmp_path / "m"), "", "float32", 0)
    assert same(weights(tiny), weights(other)) and other.batch_ids == [] and other.updates == 0
