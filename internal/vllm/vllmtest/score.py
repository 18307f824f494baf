"""Score token sequences with a transformers forward pass, for tests: the trainer's side of the canary.

Reads one JSON object a line, {"dir": MODEL, "sequences": [[id, …], …], "temperature": 1.0}, and answers each with a
line {"logprobs": [[0.0, …], …]}: the logprob of each token given the ones before it, element 0 being 0.
"""

import functools
import json
import sys

import torch
from transformers import AutoModelForCausalLM

torch.set_num_threads(1)


@functools.lru_cache(maxsize=4)
def load(path: str) -> torch.nn.Module:
    """Load a model once, in float32."""
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()


@torch.no_grad()
def score(model: torch.nn.Module, ids: list[int], temperature: float) -> list[float]:
    """Return the logprob of every token of one sequence."""
    tokens = torch.tensor([ids])
    logprobs = torch.log_softmax(model(tokens).logits[0, :-1].float() / temperature, dim=-1)
    return [0.0, *logprobs.gather(1, tokens[0, 1:, None])[:, 0].tolist()]


def main() -> None:
    """Answer requests until the input ends."""
    for line in sys.stdin:
        given = json.loads(line)
        model = load(given["dir"])
        answer = [score(model, ids, given.get("temperature", 1.0)) for ids in given["sequences"]]
        print(json.dumps({"logprobs": answer}), flush=True)


if __name__ == "__main__":
    main()
