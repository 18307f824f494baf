"""One update of ours against one of TRL's GRPOTrainer: the same weights, episodes, loss, threads and process, in turns.

    update.py [--rounds 5] [--episodes 16] [--threads N] ...

Runs in the peers environment with milepost_trainer on PYTHONPATH; prints lines as `go test -bench` does, which `milepost bench`
sums up. docs/bench.md says what is compared.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass

# Read when the packages are imported. Threads that wait do not spin, as in the trainer's own process.
os.environ |= {
    "OMP_WAIT_POLICY": "PASSIVE",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
}

import pyarrow as pa
import torch
import transformers
from datasets import Dataset
from transformers import AutoTokenizer
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import split_tensor_dict

from milepost_trainer import batch, loss, model, optim, trainer

# Lengths in tokens: median, standard deviation of the logarithm, least and most.
MIXES = {
    "micro": (218, 0.21, 150, 960),  # as 7,298 rows of quickstart runs are: micro tasks, all about equally long
    "swe": (700, 0.7, 150, 4096),  # a long tail, as of trajectories on real repositories, a thirtieth as long
}
SHAPE = {"layers": 4, "width": 128, "heads": 4, "key_value_heads": 4, "mlp_width": 384, "max_context": 4096}  # the quickstart's
LR, CLIP_LOW, CLIP_HIGH = 1e-4, 0.2, 0.28
PROMPT, TRAINED, TURN = 0.21, 0.37, 60  # shares of an episode, as in the quickstart's batches; tokens of a turn


@dataclass
class Episode:
    tokens: list[int]
    prompt: int  # its length
    trained: list[bool]
    old: list[float]
    advantage: float


def episodes(count: int, mix: str, vocab: int, seed: int) -> list[Episode]:
    """The same quantiles of the mix in every batch, in a drawn order, so that rounds differ in content and not in size."""
    median, sigma, least, most = MIXES[mix]
    g = torch.Generator().manual_seed(seed)
    quantiles = torch.special.ndtri((torch.arange(count, dtype=torch.float64) + 0.5) / count)
    lengths = (median * torch.exp(sigma * quantiles)).clamp(least, most).long()
    out = []
    for n in lengths[torch.randperm(count, generator=g)].tolist():
        prompt, answer = int(n * PROMPT), round(TURN * TRAINED / (1 - PROMPT))
        trained = [t >= prompt and (t - prompt) % TURN < answer for t in range(n)]
        out.append(
            Episode(
                torch.randint(3, vocab, (n,), generator=g).tolist(), prompt, trained,
                [-float(x) if m else 0.0 for x, m in zip(torch.rand(n, generator=g), trained, strict=True)],
                torch.randn((), generator=g).item(),
            )
        )  # fmt: skip
    return out


class Ours:
    """Trainer.update as a run calls it: the batch file is read and checked, too."""

    def __init__(self, model_dir: str, work: str, micro_tokens: int):
        self.trainer, self.path, self.count = trainer.Trainer(), os.path.join(work, "batch.arrow"), 0
        self.trainer.init(model_dir, "", "float32", 1)
        rule = loss.LossConfig(clip_low=CLIP_LOW, clip_high=CLIP_HIGH, aggregate="token-mean")
        self.config = trainer.UpdateConfig(rule, optim.OptimizerConfig(LR, beta2=0.999), micro_tokens=micro_tokens)

    def prepare(self, all_: list[Episode]) -> None:
        rows = [
            {
                "episode": f"e{i}", "tokens": e.tokens, "logprobs": e.old, "mask": e.trained,
                "versions": [0 if m else -1 for m in e.trained], "advantages": [e.advantage * m for m in e.trained],
            }
            for i, e in enumerate(all_)
        ]  # fmt: skip
        table = pa.Table.from_pylist(rows, schema=batch.SCHEMA)
        with pa.OSFile(self.path, "wb") as f, pa.ipc.new_file(f, batch.SCHEMA) as w:
            w.write_table(table)
        self.sha256 = batch.sha256_of(self.path)

    def step(self) -> tuple[float, float]:
        """Loss and norm of the gradient."""
        self.count += 1
        m = self.trainer.update(f"b{self.count}", self.path, self.sha256, self.config)
        return m["loss"], m["grad_norm"]


class Given(GRPOTrainer):
    """GRPOTrainer on inputs that it has prepared already."""

    def _prepare_inputs(self, inputs):
        return inputs


class Theirs:
    """TRL's own training steps and optimizer on a batch that it padded, masked and split itself."""

    def __init__(self, model_dir: str, work: str, count: int, width: int):
        self.all: list[Episode] = []
        self.steps = count // width
        config = GRPOConfig(
            os.path.join(work, f"trl{width}"), per_device_train_batch_size=width, gradient_accumulation_steps=self.steps,
            num_generations=count, max_completion_length=SHAPE["max_context"], loss_type="dapo", beta=0.0, epsilon=CLIP_LOW,
            epsilon_high=CLIP_HIGH, learning_rate=LR, weight_decay=0.0, lr_scheduler_type="constant", use_cpu=True, bf16=False,
            report_to="none", gradient_checkpointing=False,
        )  # fmt: skip
        self.trainer = Given(
            model_dir, lambda completions, **_: [0.0] * len(completions), config, Dataset.from_dict({"prompt": ["a"] * count}),
            processing_class=AutoTokenizer.from_pretrained(model_dir), rollout_func=self._rollout,
        )  # fmt: skip
        self.trainer.create_optimizer()
        self.trainer.current_gradient_accumulation_steps = self.steps

    def _rollout(self, prompts, trainer) -> dict:
        return {
            "prompt_ids": [e.tokens[: e.prompt] for e in self.all],
            "completion_ids": [e.tokens[e.prompt :] for e in self.all],
            "env_mask": [[int(m) for m in e.trained[e.prompt :]] for e in self.all],
            "logprobs": None,
        }

    def prepare(self, all_: list[Episode]) -> None:
        self.all = all_
        inputs = self.trainer._generate_and_score_completions([{"prompt": "a"}] * len(all_))
        inputs["advantages"] = torch.tensor([e.advantage for e in all_])
        self.inputs = split_tensor_dict(inputs, self.steps)

    def step(self) -> tuple[float, float]:
        t = self.trainer
        total = sum(t.training_step(t.model, inputs, None).item() for inputs in self.inputs)
        norm = torch.nn.utils.clip_grad_norm_(t.model.parameters(), 1.0)
        t.optimizer.step()
        t.optimizer.zero_grad(set_to_none=True)
        return total, norm.item()


def timed(side) -> tuple[float, float, tuple[float, float]]:
    """Seconds of a step, those of processors, and what it returned."""
    started, worked = time.perf_counter(), time.process_time()
    got = side.step()
    return time.perf_counter() - started, time.process_time() - worked, got


def compare(mix: str, args, model_dir: str, vocab: int) -> str:
    with tempfile.TemporaryDirectory() as work:
        ours = Ours(model_dir, work, args.micro_tokens)
        first = episodes(args.episodes, mix, vocab, 0)
        ours.prepare(first)
        want, sides, took = ours.step(), {}, {}
        for width in sorted({min(w, args.episodes) for w in args.widths}):
            sides[width] = Theirs(model_dir, work, args.episodes, width)
            sides[width].prepare(first)
            _, took[width], got = timed(sides[width])
            if any(abs(a - b) > 1e-4 * max(1, abs(a)) for a, b in zip(want, got, strict=True)):
                sys.exit(f"update.py: loss and gradient norm are {want} and TRL's {got}; the two do not compute the same")
        best = min(took, key=took.get)
        print(f"bench: {mix}: CPU seconds of TRL by sequences a pass: {took}", file=sys.stderr)
        theirs, rates, ratios, work_ratios = sides[best], {"ours": [], "trl": []}, [], []
        for n in range(args.rounds):
            data = episodes(args.episodes, mix, vocab, n + 1)
            trained = sum(sum(e.trained) for e in data)
            ours.prepare(data)
            theirs.prepare(data)
            order = (("ours", ours), ("trl", theirs))
            took = {name: timed(side)[:2] for name, side in (order if n % 2 == 0 else order[::-1])}
            for name, (seconds, _) in took.items():
                rates[name].append(trained / seconds)
            wall, cpu = (b / a for a, b in zip(took["ours"], took["trl"], strict=True))
            ratios.append(wall)
            work_ratios.append(cpu)
    lengths = [len(e.tokens) for e in data]
    figures = {
        "x-TRL": statistics.median(ratios), "x-TRL-min": min(ratios), "x-TRL-max": max(ratios),
        "x-TRL-CPU": statistics.median(work_ratios),
        "trained-tokens/s": statistics.median(rates["ours"]), "TRL-trained-tokens/s": statistics.median(rates["trl"]),
        "TRL-width": best, "TRL-padding": max(lengths) * len(lengths) / sum(lengths),
    }  # fmt: skip
    ns = trained / statistics.median(rates["ours"]) * 1e9
    return f"BenchmarkUpdate/{mix} {args.rounds} {ns:.0f} ns/op " + " ".join(f"{v:.5g} {k}" for k, v in figures.items())


def main() -> None:
    p = argparse.ArgumentParser()
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--episodes", type=int, default=16)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--micro-tokens", type=int, default=8192)
    p.add_argument(
        "--widths", type=int, nargs="+", default=[4, 8, 16], help="sequences of a pass of TRL to try; the fastest counts"
    )
    p.add_argument("--mixes", nargs="+", default=list(MIXES), choices=list(MIXES))
    args = p.parse_args()
    torch.set_num_threads(args.threads)
    transformers.utils.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as d:
        model_dir = os.path.join(d, "model")
        shape = model.Shape(**SHAPE, vocab_size=640, rope_theta=10000.0, seed=1, added_tokens=[])
        _, vocab = model.create(__file__, model_dir, shape)
        print("pkg: trainer_bridge", flush=True)
        for mix in args.mixes:
            print(compare(mix, args, model_dir, vocab), flush=True)


if __name__ == "__main__":
    main()
