"""Write a tiny random Llama with its tokenizer and chat template to a directory, for tests against a real server.

    python tiny_model.py OUT [SEED] [--nudge SIZE] [--dtype float32] [--experts qwen3_moe]

With --experts it is a mixture of 8 experts, 2 for each token, of that family (qwen3_moe or mixtral).
With --nudge every weight is moved by a normal step of that size: as far as one optimiser step of that learning rate.

The model is untrained: its samples are noise, often half characters, which is what the token-exactness tests want.
Embeddings are untied and lm_head.weight is saved: with tied ones a reload leaves the head of the CPU server stale.
"""

import argparse
import pathlib

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig, PreTrainedTokenizerFast, Qwen3MoeConfig

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CORPUS = [
    "def add(a, b):\n    return a + b\n",
    '<tool_call>\n{"name": "read_file", "arguments": {"path": "pkg/core.py"}}\n</tool_call>',
    "<tool_call>\n<function=search>\n<parameter=query>\nmain\n</parameter>\n</function>\n</tool_call>",
    "<tool_response>\nFound 3 matches in 2 files.\n</tool_response>",
    "The tests fail because the bound is off by one. naïve café 漢字 🙂",
] * 8

TEMPLATE = pathlib.Path(__file__).with_name("chatml.jinja")


def tokenizer(out: pathlib.Path) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE of a few hundred pieces and save it with the template."""
    tok = Tokenizer(models.BPE())
    tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tok.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=420,
        special_tokens=[AddedToken(s, special=True, normalized=False) for s in SPECIAL],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tok.train_from_iterator(CORPUS, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tok, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = TEMPLATE.read_text()
    fast.save_pretrained(out)
    return fast


def family(experts: str) -> tuple[type, dict]:
    """Return the configuration class, and what it takes beyond the common shape."""
    if experts == "qwen3_moe":
        return Qwen3MoeConfig, {
            "num_experts": 8,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "head_dim": 32,
            "norm_topk_prob": True,
        }
    if experts == "mixtral":
        return MixtralConfig, {"num_local_experts": 8, "num_experts_per_tok": 2, "head_dim": 32}
    return LlamaConfig, {}


def model(out: pathlib.Path, fast: PreTrainedTokenizerFast, seed: int, nudge: float, dtype: str, experts: str) -> None:
    """Save a randomly initialised model of about a hundred thousand parameters."""
    torch.manual_seed(seed)
    kind, extra = family(experts)
    config = kind(
        vocab_size=len(fast),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,  # head size 32: the CPU attention kernel refuses 16
        num_key_value_heads=1,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        initializer_range=0.15,
        bos_token_id=None,
        eos_token_id=fast.eos_token_id,
        pad_token_id=fast.pad_token_id,
        **extra,
    )
    net = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for weight in net.parameters():
            weight.add_(nudge * torch.randn_like(weight))
    net.to(getattr(torch, dtype)).save_pretrained(out)


def main() -> None:
    """Parse the arguments and write the model."""
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("out", type=pathlib.Path)
    args.add_argument("seed", type=int, nargs="?", default=0)
    args.add_argument("--nudge", type=float, default=0.0)
    args.add_argument("--dtype", default="float32")
    args.add_argument("--experts", choices=["qwen3_moe", "mixtral"])
    given = args.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    model(given.out, tokenizer(given.out), given.seed, given.nudge, given.dtype, given.experts)


if __name__ == "__main__":
    main()
