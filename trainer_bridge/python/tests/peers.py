"""What TRL and verl make of given per-token streams. test_peers.py runs it in the environment of these packages.

    peers.py MODEL_DIR CASES.pt OUT.pt

A case is {"package": "trl" or "verl", "options": {...}, "streams": {...}}; streams are [S, T] float64, padded, and `lengths`
[S]. OUT holds {"loss", "grad" [S, T]} a case. Every rule is the package's own code: of TRL the trainer that its users run,
from the rollout function on, with only its networks' answers replaced by the streams.
"""

import sys

import torch
from torch import Tensor

# --- verl ---


def verl(options: dict, s: dict[str, Tensor], lengths: Tensor) -> tuple[Tensor, Tensor]:
    """options: `loss` (a name of verl's registry), `aggregate`, fields of its actor (`actor`), its rollout correction
    (`correction`) and its KL penalty (`kl`, `kl_coef`)."""
    from verl.trainer.ppo import core_algos, rollout_corr_helper
    from verl.workers.config import ActorConfig

    mask, weights = s["mask"], None
    if correction := options.get("correction"):
        weights, mask, _ = rollout_corr_helper.compute_rollout_correction_and_rejection_mask(
            s["logprob_old"], s["logprob_sampler"], mask, **correction
        )
        weights = None if weights is None else weights.batch["rollout_is_weights"]
    actor = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, **options.get("actor", {}))
    if "loss_scale_factor" in options:
        actor.global_batch_info["loss_scale_factor"] = options["loss_scale_factor"]
    logprob = s["logprob"].requires_grad_()
    rule = core_algos.get_policy_loss_fn(options["loss"])
    loss, _ = rule(s["logprob_old"], logprob, s["advantage"], mask, options["aggregate"], actor, weights)
    if "kl" in options:
        kl = core_algos.kl_penalty(logprob, s["logprob_reference"], options["kl"])
        loss = loss + options["kl_coef"] * core_algos.agg_loss(kl, mask, options["aggregate"], **actor.global_batch_info)
    return loss, logprob


def verl_value(options: dict, s: dict[str, Tensor], lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The value loss; the gradient is by `value`."""
    from verl.trainer.ppo import core_algos

    value = s["value"].requires_grad_()
    loss, _ = core_algos.compute_value_loss(value, s["return"], s["value_old"], s["mask"], options["clip"])
    return loss, value


# --- TRL ---


def trl(options: dict, s: dict[str, Tensor], lengths: Tensor, model_dir: str) -> tuple[Tensor, Tensor]:
    """options: fields of GRPOConfig, and `correct` (bool): sampler and trainer differ, as with vLLM."""
    import tempfile

    from datasets import Dataset
    from transformers import AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    logprob = s["logprob"].requires_grad_()
    count = len(lengths)

    class Given(GRPOTrainer):
        def _get_per_token_logps_and_entropies(self, model, *args, **kwargs):
            if torch.is_grad_enabled():
                return logprob, torch.zeros_like(logprob), None
            return s["logprob_reference" if model is self.ref_model else "logprob_old"], None, None

    def rollout(prompts, trainer) -> dict:
        def rows(name):
            return [row[:n].tolist() for row, n in zip(s[name], lengths.tolist(), strict=True)]

        return {
            "prompt_ids": [[1, 2]] * count,
            "completion_ids": [[3] * n for n in lengths.tolist()],
            "logprobs": rows("logprob_sampler"),
            "env_mask": [[int(m) for m in row] for row in rows("mask")],
        }

    options = dict(options)
    correct = options.pop("correct", False)
    with tempfile.TemporaryDirectory() as out:
        config = GRPOConfig(
            out, per_device_train_batch_size=count, num_generations=count, max_completion_length=int(lengths.max()),
            num_iterations=2, report_to="none", use_cpu=True, bf16=False, **options,
        )  # fmt: skip
        trainer = Given(
            model_dir, lambda completions, **_: [0.0] * len(completions), config, Dataset.from_dict({"prompt": ["a"] * count}),
            processing_class=AutoTokenizer.from_pretrained(model_dir), rollout_func=rollout,
        )  # fmt: skip
    # What TRL does where vLLM sampled; no server is asked, since the rollout function is.
    trainer.use_vllm, trainer._last_loaded_step = correct, 0
    trainer.current_gradient_accumulation_steps = 1
    inputs = trainer._generate_and_score_completions([{"prompt": "a"}] * count)
    inputs["advantages"] = s["advantage"]
    return trainer._compute_loss(trainer.model, inputs), logprob


def main(model_dir: str, cases_file: str, out: str) -> None:
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    results = []
    for case in torch.load(cases_file):
        streams = {k: v.clone() for k, v in case["streams"].items()}
        lengths = streams.pop("lengths")
        if case["package"] == "trl":
            loss, by = trl(case["options"], streams, lengths, model_dir)
        else:
            loss, by = (verl_value if case["package"] == "verl value" else verl)(case["options"], streams, lengths)
        (grad,) = torch.autograd.grad(loss, by)
        results.append({"loss": loss.item(), "grad": grad})
    torch.save(results, out)


if __name__ == "__main__":
    main(*sys.argv[1:])
