"""The choices that Init and Load share beside the model itself; the names are those of Options in the protocol.

A new one is a field here, in the protocol and in trainerbridge.Options; its rule stands in a file of its own.
"""

from dataclasses import dataclass

from milepost_trainer.errors import invalid
from milepost_trainer.kernels import KERNELS
from milepost_trainer.lora import LoraConfig


@dataclass(frozen=True)
class Options:
    lora: LoraConfig | None = None  # None = every weight is trained
    kernels: str = ""  # fused kernels (kernels.py)
    context_parallel: int = 0  # ranks that share a sequence (context.py); 0 and 1 = each has whole ones
    routing_replay: bool = False  # the routers of a mixture of experts take the choices of the batch (routing.py)

    def __post_init__(self):
        if self.kernels not in KERNELS:
            raise invalid(f"kernels is {self.kernels!r}; allowed: {', '.join(map(repr, KERNELS))}")
        if self.context_parallel < 0:
            raise invalid(f"context_parallel is {self.context_parallel}; allowed: 0 or more ranks")
        if self.context_parallel > 1 and self.routing_replay:
            raise invalid("context_parallel and routing_replay are both asked for; allowed: one of them")

    def of_reference(self) -> "Options":
        """What holds for a reference model, too."""
        return Options(kernels=self.kernels, context_parallel=self.context_parallel)


PLAIN = Options()
