"""Hands a run's metrics to one experiment tracker, through the tracker's own package. Runs in the trackers environment.

python -m milepost_trainer.trackers < LINES

Standard input is one JSON line {"tracker", "id", "name", "dir", "options", "config"} and then one for each line of
metrics.jsonl: {"end", "step", "time", "scalars"}, where end is the offset in that file behind the line. Standard output
answers with {"ready": OFFSET}, the offset from which lines are wanted, then {"done": OFFSET} for each line, and
{"error": TEXT} before an exit with status 1. What libraries print goes to standard error. The end of standard input means
the end of the run, or of its process: what was given is flushed.

DIR/NAME.json holds the offset behind the last line that was delivered, so that a resumed run sends no line twice; DIR/NAME.lock
keeps a process of an earlier start, which may still be flushing, apart from the next one. Keys are read from the environment by
the trackers' packages themselves; none comes in by standard input. A new tracker is a class with start, deliver and finish.
"""

import contextlib
import fcntl
import json
import os
import sys
from pathlib import Path


class WandB:
    """Weights & Biases. The x axis is "step": wandb's own step must grow with each call, and in mode async a push can be
    recorded behind the batch of the next update."""

    def start(self, run: dict) -> None:
        import wandb

        o = run["options"]
        self.run = wandb.init(
            project=o["project"],
            entity=o["entity"] or None,
            group=o["group"] or None,
            tags=o["tags"] or None,
            mode=o["mode"],
            id=run["id"],
            name=run["name"],
            resume="allow",
            dir=run["dir"],
            config=run["config"],
            settings=wandb.Settings(console="off", disable_git=True, disable_code=True, x_disable_stats=True),
        )
        for name in ("step", "time"):
            self.run.define_metric(name, hidden=True)
        self.run.define_metric("*", step_metric="step")

    def deliver(self, line: dict) -> None:
        self.run.log({**line["scalars"], "step": line["step"], "time": line["time"]})

    def finish(self) -> None:
        self.run.finish()


class MLflow:
    """MLflow. A run is found again by a tag: MLflow chooses the ids of runs itself."""

    tag = "milepost.run"

    def start(self, run: dict) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        o = run["options"]
        uri = o["uri"] or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{run['dir']}/mlflow.db"
        self.client = MlflowClient(tracking_uri=uri)
        experiment = self.client.get_experiment_by_name(o["experiment"])
        number = experiment.experiment_id if experiment else self.client.create_experiment(o["experiment"])
        found = self.client.search_runs([number], filter_string=f"tags.`{self.tag}` = '{run['id']}'")
        if found:
            self.id = found[0].info.run_id
            self.client.update_run(self.id, status="RUNNING")
            return
        self.id = self.client.create_run(number, run_name=run["name"], tags={self.tag: run["id"]}).info.run_id
        params = [Param(name, str(value)[:6000]) for name, value in flat(run["config"])]
        for at in range(0, len(params), 100):  # the most that one call takes
            self.client.log_batch(self.id, params=params[at : at + 100])

    def deliver(self, line: dict) -> None:
        from mlflow.entities import Metric

        now = int(line["time"] * 1000)
        metrics = [Metric(name, value, now, line["step"]) for name, value in line["scalars"].items()]
        self.client.log_batch(self.id, metrics=metrics)

    def finish(self) -> None:
        self.client.set_terminated(self.id)


class Trackio:
    """trackio, which names runs within a project by their name."""

    def start(self, run: dict) -> None:
        import trackio

        o = run["options"]
        self.run = trackio.init(
            project=o["project"],
            name=f"{run['name']}-{run['id']}",
            space_id=o["space_id"] or None,
            config=run["config"],
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def deliver(self, line: dict) -> None:
        self.run.log(line["scalars"], step=line["step"])

    def finish(self) -> None:
        self.run.finish()


TRACKERS = {"wandb": WandB, "mlflow": MLflow, "trackio": Trackio}


def flat(value, prefix: str = "") -> list[tuple[str, object]]:
    """The leaves of nested dicts, by dotted names; lists stay whole."""
    if isinstance(value, dict) and value:
        return [leaf for key, v in value.items() for leaf in flat(v, f"{prefix}{key}.")]
    return [(prefix.rstrip("."), value)]


class Place:
    """How far a tracker has come, on disk."""

    def __init__(self, directory: Path, name: str):
        directory.mkdir(parents=True, exist_ok=True)
        self.file = directory / f"{name}.json"
        # Held until the process ends, so it is no context manager.
        self.lock = open(directory / f"{name}.lock", "w")  # noqa: SIM115
        fcntl.flock(self.lock, fcntl.LOCK_EX)

    def read(self) -> int:
        return json.loads(self.file.read_text())["delivered"] if self.file.exists() else 0

    def write(self, offset: int) -> None:
        new = self.file.with_suffix(".new")
        new.write_text(json.dumps({"delivered": offset}) + "\n")
        new.replace(self.file)


def serve(lines, answer) -> None:
    """Delivers what lines holds, and answers by answer(dict)."""
    run = json.loads(next(lines))
    place = Place(Path(run["dir"]), run["tracker"])
    tracker = TRACKERS[run["tracker"]]()
    tracker.start(run)
    answer({"ready": place.read()})
    try:
        for text in lines:
            line = json.loads(text)
            tracker.deliver(line)
            place.write(line["end"])
            answer({"done": line["end"]})
    finally:
        tracker.finish()


def main() -> int:
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries print where they like

    def answer(message: dict) -> None:
        with contextlib.suppress(BrokenPipeError):  # the run's process is gone; what it gave is delivered all the same
            print(json.dumps(message), file=out)

    try:
        serve(iter(sys.stdin), answer)
    except Exception as e:  # whatever a tracker's package raises
        answer({"error": f"{type(e).__name__}: {e}"[:500]})
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
