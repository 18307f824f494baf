"""Runs mini-swe-agent's loop for `milepost bench` and prints what it cost, as JSON (loopFigures).

The agent is DefaultAgent with the prompts of its mini.yaml, one thread an episode as in its batch runner. The model is its
DeterministicToolcallModel ("scripted"), which sleeps for the latency and does no HTTP, or its LitellmModel ("litellm") against
the stub. The environment is its LocalEnvironment, whose commands print what the script says instead of being run: the bench is of
the loop, not of processes. Of the scripted model's template variables the script itself is left out: to copy it at
every turn would cost more than the loop.
"""

import argparse
import gc
import json
import os
import resource
import sys
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import yaml
from minisweagent.agents.default import DefaultAgent
from minisweagent.config import builtin_config_dir
from minisweagent.environments.local import LocalEnvironment
from minisweagent.models.test_models import DeterministicToolcallModel


class Hold:
    """Holds one turn of every episode until memory was read; the stub does it where there is one."""

    def __init__(self, turn: int, episodes: int):
        self.turn, self.episodes, self.waiting = turn, episodes, 0
        self.lock, self.free = threading.Lock(), threading.Event()

    def wait(self, turn: int) -> None:
        if turn == self.turn:
            with self.lock:
                self.waiting += 1
            self.free.wait()


class ScriptedModel(DeterministicToolcallModel):
    hold: Hold

    def query(self, messages, **kwargs):
        turn = (self.current_index + 1) // 2
        message = super().query(messages, **kwargs)
        self.hold.wait(turn)
        return message

    def get_template_vars(self, **kwargs):
        return {"model_name": self.config.model_name}


class PrintingEnvironment(LocalEnvironment):
    observed = ""

    def execute(self, action, cwd="", *, timeout=None):
        command = action["command"]
        text = command.removeprefix("echo ") + "\n" if command.startswith("echo COMPLETE") else self.observed
        output = {"output": text, "returncode": 0, "exception_info": ""}
        self._check_finished(output)
        return output


def resident() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def cpu() -> float:
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in both)


def outputs(script: dict, latency: float) -> list[dict]:
    """The scripted model's turns: a sleep, then the answer."""
    out = []
    for i, (thought, command) in enumerate(zip(script["thoughts"], script["commands"], strict=True)):
        call = f"call_{i}"
        function = {"name": "bash", "arguments": json.dumps({"command": command})}
        calls = [{"id": call, "type": "function", "function": function}]
        actions = [{"command": command, "tool_call_id": call}]
        extra = {"actions": actions, "cost": 0.0, "timestamp": 0.0}
        out.append({"role": "assistant", "content": None, "extra": {"actions": [{"command": f"/sleep {latency}"}]}})
        out.append({"role": "assistant", "content": thought, "tool_calls": calls, "extra": extra})
    return out


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries print where they like
    p = argparse.ArgumentParser()
    p.add_argument("--endpoint", required=True)
    p.add_argument("--episodes", type=int, required=True)
    p.add_argument("--script", required=True)
    p.add_argument("--latency", type=float, required=True)
    p.add_argument("--model", choices=("scripted", "litellm"), required=True)
    p.add_argument("--memory", action="store_true")
    p.add_argument("--hold-turn", type=int, default=-1)
    a = p.parse_args()
    with open(a.script) as f:
        script = json.load(f)
    with open(builtin_config_dir / "mini.yaml") as f:
        config = yaml.safe_load(f)
    agent_config = {k: config["agent"][k] for k in ("system_template", "instance_template")}
    PrintingEnvironment.observed = script["observed"]
    ScriptedModel.hold = hold = Hold(a.hold_turn, a.episodes)
    if a.model == "scripted":
        make, options = ScriptedModel, {"outputs": outputs(script, a.latency), "cost_per_call": 0.0}
    else:
        from minisweagent.models.litellm_model import LitellmModel  # takes seconds to import

        keys = config["model"].get("model_kwargs", {}) | {"api_base": a.endpoint + "/v1", "api_key": "none"}
        make, options = LitellmModel, {"model_name": "openai/stub", "model_kwargs": keys}

    def episode(_: int) -> int:
        agent = DefaultAgent(make(**(config["model"] | options)), PrintingEnvironment(), cost_limit=0.0, **agent_config)
        result = agent.run("The function returns a wrong value. " * 30)
        if result.get("exit_status") != "Submitted":
            sys.exit(f"an episode ended as {result}")
        return agent.n_calls

    def held() -> int:
        if a.model == "scripted":
            return hold.waiting
        with urllib.request.urlopen(a.endpoint + "/held") as r:
            return int(r.read())

    # One episode before all others loads what is loaded late; it is not held.
    turn, hold.turn = hold.turn, -1
    if a.model == "scripted":
        episode(0)
    hold.turn = turn
    gc.collect()
    got = {"episodes": a.episodes, "rss_before": resident(), "rss_held": 0, "rss_collected": 0}
    began, before = time.monotonic(), cpu()
    with ThreadPoolExecutor(max_workers=a.episodes) as pool:
        futures = [pool.submit(episode, i) for i in range(a.episodes)]
        if a.memory:
            while held() < a.episodes and not any(f.done() and f.exception() for f in futures):
                time.sleep(0.1)
            got["rss_held"] = resident()
            gc.collect()
            got["rss_collected"] = resident()
            hold.free.set()
        got["turns"] = sum(f.result() for f in futures)
    got["seconds"], got["cpu_s"] = time.monotonic() - began, cpu() - before
    print(json.dumps(got), file=out, flush=True)


if __name__ == "__main__":
    main()
