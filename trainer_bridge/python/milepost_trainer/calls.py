"""What every rank does at a call: the operations by name, and the loop of the ranks that do not speak gRPC.

A call is its name and plain fields, so that rank 0 can announce it. An operation fails with TrainerError on all ranks or
on none, and the state is then as before; any other exception may have left ranks in different places, and ends the process.
"""

import logging
from collections.abc import Callable

from milepost_trainer import checkpoint, sft, transfer
from milepost_trainer.errors import TrainerError
from milepost_trainer.ranks import Ranks
from milepost_trainer.trainer import Trainer

log = logging.getLogger("milepost_trainer")

STOP = "stop"  # announced when rank 0 ends


def _supervised(trainer: Trainer, path: str, config, progress: Callable[[dict], None], alive: Callable[[], bool]):
    sft.run(trainer, path, config, progress, alive)


OPERATIONS: dict[str, Callable] = {
    "init": lambda t, **fields: (t.init(**fields), t.info())[1],
    "update": Trainer.update,
    "supervised": _supervised,
    "score": Trainer.score,
    "values": Trainer.values,
    "save": lambda t, path: (checkpoint.save(t, path), t.info())[1],
    "load": lambda t, **fields: (checkpoint.load(t, **fields), t.info())[1],
    "export": checkpoint.export,
    "transfer": transfer.send,
}


def run(trainer: Trainer, name: str, fields: dict, **local):
    """Announces a call and takes part in it: what rank 0 does. `local` are arguments that are rank 0's alone."""
    trainer.ranks.broadcast((name, fields))
    return OPERATIONS[name](trainer, **fields, **local)


def follow(group: Ranks) -> None:
    """Takes part in every call that rank 0 announces, until it stops."""
    trainer = Trainer(group)
    while True:
        name, fields = group.broadcast(None)
        if name == STOP:
            return
        local = {"progress": lambda _: None, "alive": lambda: True} if name == "supervised" else {}
        try:
            OPERATIONS[name](trainer, **fields, **local)
        except TrainerError as e:
            log.info("trainer: rank %d: %s: %s", group.rank, name, e)


def stop(group: Ranks) -> None:
    """Lets the other ranks end; rank 0 calls it last."""
    group.broadcast((STOP, {}))
