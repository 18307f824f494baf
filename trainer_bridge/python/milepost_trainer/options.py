"""The choices that Init and Load share beside the model itself; the names are those of Options in the protocol.

A new one is a field here, in the protocol and in trainerbridge.Options; its rule stands in a file of its own.
"""

from dataclasses import dataclass

from milepost_trainer.errors import invalid
from milepost_trainer.lora import LoraConfig


@dataclass(frozen=True)
class Options:
    lora: LoraConfig | None = None  # None = every weight is trained
    kernels: str = ""
    context_parallel: int = 0  # ranks a sequence; 0 and 1 = whole sequences
    routing_replay: bool = False  # the routers of a mixture of experts take the choices of the batch (routing.py)

    def __post_init__(self):
        for name, unset in (("kernels", ("",)), ("context_parallel", (0, 1))):
            if (value := getattr(self, name)) not in unset:
                raise invalid(f"{name} is {value!r}; allowed: {unset[0]!r}")


PLAIN = Options()
