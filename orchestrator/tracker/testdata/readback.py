"""Reads back what three trackers have stored, for the test of the feeds: readback.py DIR PROJECT.

Prints {"wandb": RUNS, "mlflow": RUNS, "trackio": RUNS}; a run is {"id", "config", "points"}, points are [name, step, value] in
the order in which they were stored.
"""

import json
import struct
import sys
from pathlib import Path

from mlflow import MlflowClient
from trackio.sqlite_storage import SQLiteStorage
from wandb.proto import wandb_internal_pb2


def records(path: Path):
    """The records of a .wandb file: seven bytes, then LevelDB's log format in blocks of 32 KiB."""
    data, at, part = path.read_bytes(), 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + 7])
        part, at = part + data[at + 7 : at + 7 + size], at + 7 + size
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(part)
            part = b""


def wandb_runs(directory: Path):
    runs = {}
    for path in sorted(directory.glob("wandb/offline-run-*/*.wandb")):
        run = None
        for r in records(path):
            kind = r.WhichOneof("record_type")
            if kind == "run":
                run = runs.setdefault(r.run.run_id, {"id": r.run.run_id, "config": {}, "points": []})
                run["config"].update({u.key: json.loads(u.value_json) for u in r.run.config.update})
            elif kind == "history":
                items = {i.key or ".".join(i.nested_key): json.loads(i.value_json) for i in r.history.item}
                step = items["step"]
                run["points"] += [[k, step, v] for k, v in items.items() if not k.startswith("_") and k not in ("step", "time")]
    return list(runs.values())


def mlflow_runs(directory: Path, project: str):
    client = MlflowClient(tracking_uri=f"sqlite:///{directory}/mlflow.db")
    out = []
    for run in client.search_runs([client.get_experiment_by_name(project).experiment_id]):
        assert run.info.status == "FINISHED", run.info
        points = [[m.key, m.step, m.value] for k in run.data.metrics for m in client.get_metric_history(run.info.run_id, k)]
        out.append({"id": run.data.tags["milepost.run"], "config": run.data.params, "points": points})
    return out


def trackio_runs(project: str):
    out = []
    for run in SQLiteStorage.get_run_records(project):
        logs = SQLiteStorage.get_logs(project, run["name"])
        points = [[k, row["step"], v] for row in logs for k, v in row.items() if "/" in k]
        config = SQLiteStorage.get_run_config(project, run["name"])
        out.append({"id": run["name"], "config": config, "points": points})
    return out


directory, project = Path(sys.argv[1]), sys.argv[2]
json.dump(
    {"wandb": wandb_runs(directory), "mlflow": mlflow_runs(directory, project), "trackio": trackio_runs(project)},
    sys.stdout,
)
