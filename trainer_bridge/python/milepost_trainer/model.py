"""Making, loading and writing models: tiny Llamas from a shape, and any causal model directory that the rest can train.

Embeddings are always untied and the language model head is always in the saved files: with tied embeddings vLLM's
`reload_weights` leaves the head stale on the CPU build, and the sampler drifts from the trainer.
"""

import contextlib
import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from milepost_trainer import files, lora, pack, policy, tokenizer
from milepost_trainer.errors import TrainerError, invalid
from milepost_trainer.ranks import Ranks

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

# Everything of a model directory that is neither weights nor configuration; copied byte for byte into exports.
TOKENIZER_FILES = (
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja",
    "vocab.json", "merges.txt", "generation_config.json",
)  # fmt: skip

# Standard deviation of the initial weights, times the root of the width. transformers' constant .02 suits wide models; at
# width 128 it leaves the layers nearly silent, and copying (which a tool loop is made of) is learned four times later.
INIT = 0.7


@dataclass
class Shape:
    """A tiny Llama; the names are those of ModelConfig in the protocol."""

    vocab_size: int
    layers: int
    width: int
    heads: int
    key_value_heads: int
    mlp_width: int
    max_context: int
    rope_theta: float
    seed: int
    added_tokens: list[str]

    def __post_init__(self):
        for field in ("layers", "width", "heads", "key_value_heads", "mlp_width", "max_context"):
            if getattr(self, field) < 1:
                raise invalid(f"model.{field} is {getattr(self, field)}; allowed: 1 or more")
        if self.width % (2 * self.heads) or self.heads % self.key_value_heads:
            raise invalid(
                f"model.width {self.width} must be a multiple of twice heads {self.heads}, "
                f"and heads a multiple of key_value_heads {self.key_value_heads}"
            )
        if self.rope_theta <= 1:
            raise invalid(f"model.rope_theta is {self.rope_theta}; allowed: above 1")


def create(corpus: str, out: str, shape: Shape) -> tuple[int, int]:
    """Trains the tokenizer, initialises the model and writes both to `out`; returns parameters and vocabulary size."""
    files.absent(out)
    tok = tokenizer.train(tokenizer.read_corpus(corpus), shape.vocab_size, shape.added_tokens)
    config = LlamaConfig(
        vocab_size=len(tok),
        hidden_size=shape.width,
        intermediate_size=shape.mlp_width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        max_position_embeddings=shape.max_context,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tok.eos_token_id,
        pad_token_id=tok.pad_token_id,
        dtype="float32",
        initializer_range=INIT / shape.width**0.5,
    )
    tok.model_max_length = shape.max_context
    with torch.random.fork_rng():
        torch.manual_seed(shape.seed)
        model = LlamaForCausalLM(config)
    with files.directory(out) as tmp:
        tok.save_pretrained(tmp)
        model.save_pretrained(tmp)
    return sum(p.numel() for p in model.parameters()), len(tok)


@dataclass
class Loaded:
    model: torch.nn.Module
    tokenizer: PreTrainedTokenizerFast
    files: dict[str, bytes]  # the tokenizer's, by name
    adapter: lora.LoraConfig | None = None  # of the one in it, with names


def load(path: str, adapter: lora.LoraConfig | None = None, seed: int = 0) -> Loaded:
    """Reads a Hugging Face model directory in float32; refuses what the trainer or vLLM's weight reload cannot serve. With
    an adapter it gets one: drawn by the seed, or, where path is an exported one, with its values on its base."""
    base = lora.base_of(path, adapter)

    def make(config):
        return AutoModelForCausalLM.from_pretrained(base, local_files_only=True, **_options(config))

    loaded = _read(base, make, weights=True)
    check_paths_agree(base, loaded.model)
    loaded = _adapt(loaded, adapter, seed)
    if base != path:
        lora.fill(loaded.model, path)
    return loaded


def skeleton(path: str, adapter: lora.LoraConfig | None = None) -> Loaded:
    """As `load`, without weights: parameters are on the meta device, and only configuration and tokenizer are read."""
    with _parameters_on_meta():
        loaded = _read(
            lora.base_of(path, adapter), lambda config: AutoModelForCausalLM.from_config(**_options(config)), weights=False
        )
        return _adapt(loaded, adapter)


def _adapt(loaded: Loaded, adapter: lora.LoraConfig | None, seed: int = 0) -> Loaded:
    return loaded if adapter is None else dataclasses.replace(loaded, adapter=lora.apply(loaded.model, adapter, seed))


@contextlib.contextmanager
def _parameters_on_meta():
    """Modules made here have parameters without memory. Buffers are real: those that no file holds (rotary frequencies)
    exist nowhere else."""
    register = torch.nn.Module.register_parameter

    def on_meta(module, name, param):
        register(module, name, param)
        if param is not None:
            module._parameters[name] = torch.nn.Parameter(param.to("meta"), requires_grad=param.requires_grad)

    torch.nn.Module.register_parameter = on_meta
    try:
        yield
    finally:
        torch.nn.Module.register_parameter = register


def _options(config) -> dict:
    return {"config": config, "dtype": torch.float32, "attn_implementation": pack.ATTENTION}


def _read(path: str, make, weights: bool) -> Loaded:
    if not os.path.isfile(os.path.join(path, "config.json")):
        raise TrainerError("not_found", f"model {path} has no config.json; allowed: a Hugging Face model directory")
    if weights and os.path.isfile(os.path.join(path, "COMMIT")):
        raise invalid(
            f"model {path} is a checkpoint; allowed: a model directory (python -m milepost_trainer export {path} OUT makes one)"
        )
    try:
        config = AutoConfig.from_pretrained(path, local_files_only=True)
        check_kind(path, config)
        if getattr(config, "tie_word_embeddings", False):
            raise invalid(
                f"model {path}: config.json ties the embeddings, which vLLM's weight reload gets wrong; allowed: "
                f"tie_word_embeddings false with a saved lm_head.weight (python -m milepost_trainer untie {path} OUT)"
            )
        model = make(config)
        tok = PreTrainedTokenizerFast.from_pretrained(path, local_files_only=True)
    except TrainerError:
        raise
    except Exception as e:  # transformers raises many kinds; the message says which file
        raise TrainerError("corrupt", f"model {path} cannot be loaded: {e}") from e
    kept = {n: (Path(path) / n).read_bytes() for n in TOKENIZER_FILES if (Path(path) / n).is_file()}
    return Loaded(model.eval(), tok, kept)  # no dropout, jitter or sampled experts: every pass over a token is the same


def check_kind(path: str, config) -> None:
    """Refuses what no check on short sequences can see: frequencies that depend on how long the longest sequence of a row is,
    which packing would change, and attention in chunks, which the packed attention does not know."""
    for kind in _rope_types(getattr(config, "rope_parameters", None)):
        if kind in ("longrope", "dynamic"):
            raise invalid(
                f"model {path}: config.json has rope_type {kind}, which depends on what else is in a row; allowed: others, "
                "such as default and yarn"
            )
    if "chunked_attention" in (getattr(config, "layer_types", None) or ()):
        raise invalid(f"model {path}: config.json has layers of chunked_attention; allowed: full_attention and sliding_attention")


def _rope_types(section) -> list[str]:
    """Of a configuration's rotary embeddings, which some architectures have one for each type of layer."""
    if not isinstance(section, dict):
        return []
    return [section.get("rope_type", "default")] + [kind for part in section.values() for kind in _rope_types(part)]


def max_context(config) -> int:
    """Longest sequence [tokens]: what the positions reach, and no more than a sliding window, beyond which attention is not
    computed here."""
    window, types = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    if not window or (types is not None and "sliding_attention" not in types):
        return config.max_position_embeddings
    return min(window, config.max_position_embeddings)


def check_paths_agree(path: str, model) -> None:
    """Two packed sequences must score as the model's own forward pass does: no soft cap, scale or mask left out."""
    vocab = model.config.vocab_size
    sequences = [torch.arange(1, 8) % vocab, torch.arange(3, 8) % vocab]
    wanted = [torch.arange(len(s)) > 0 for s in sequences]
    packed = policy.evaluate(policy.Policy(model), sequences, wanted, sum(map(len, sequences)), 1.0, Ranks())
    with torch.no_grad():
        for s, got in zip(sequences, packed, strict=True):
            logprobs = model(input_ids=s[None], use_cache=False).logits[0].log_softmax(-1)  # [T, V]
            want = logprobs[:-1].gather(1, s[1:, None]).squeeze(1)
            gap = (got - want).abs().max().item()
            if not gap < 1e-3:
                raise invalid(
                    f"model {path} ({type(model).__name__}): packed logprobs differ by {gap:.3g} from its own forward "
                    "pass; allowed: a causal model whose logits are lm_head(hidden state), with finite weights"
                )


def write(tmp: str, model, state: dict[str, torch.Tensor], kept: dict[str, bytes], dtype: str) -> None:
    """Writes a model directory: configuration, safetensors with lm_head.weight, tokenizer files as they came."""
    target = DTYPES[dtype]
    state = {k: v.detach().to(device="cpu", dtype=target, copy=True).contiguous() for k, v in state.items()}
    model.save_pretrained(tmp, state_dict=state)
    write_config(tmp, model, kept, dtype)


def write_config(tmp: str, model, kept: dict[str, bytes], dtype: str) -> None:
    """Writes what a model directory holds beside the weights; nothing in it says where the model was read from, so the
    exports of a run differ in their weights alone."""
    config = json.loads(model.config.to_json_string()) | {"dtype": dtype, "tie_word_embeddings": False}
    config["architectures"] = config.get("architectures") or [type(model).__name__]
    (Path(tmp) / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    for name, data in kept.items():
        (Path(tmp) / name).write_bytes(data)


def untie(model):
    """Gives the model a language model head of its own, equal to the embeddings at first."""
    if model.config.tie_word_embeddings:
        model.lm_head.weight = torch.nn.Parameter(model.get_input_embeddings().weight.detach().clone())
        model.config.tie_word_embeddings = False
    return model
