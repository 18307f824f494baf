"""The server's end: a weight-transfer engine that receives over gloo. It lives in vLLM's worker process.

Invariants. An update is received whole or not at all: where it breaks off, every layer gets its old tensors back in place,
and the next update starts afresh (vLLM's layer-wise reload would go on counting from where it stopped). Layers that
were whole by then have the new weights: whoever pushes must not trust the server before a later update succeeded. No
wait is longer than the time-out that the trainer gave.
"""

import socket
from dataclasses import dataclass

import torch
from torch.distributed import ProcessGroupGloo
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from milepost_vllm import wire


@dataclass(kw_only=True)
class GlooInitInfo(WeightTransferInitInfo):
    """What /init_weight_transfer_engine gets. The names are those of vLLM's NCCL engine where it has the same thing."""

    master_address: str  # of the trainer's store
    master_port: int
    group: str  # prefix in the store
    rank_offset: int  # of this server's first worker
    world_size: int  # trainer and workers
    packed_buffer_size_bytes: int
    timeout_seconds: float


@dataclass(kw_only=True)
class GlooUpdateInfo(WeightTransferUpdateInfo):
    """What /update_weights gets: the plan, as for the NCCL engine."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


class GlooWeightTransferEngine(WeightTransferEngine[GlooInitInfo, GlooUpdateInfo]):
    init_info_cls = GlooInitInfo
    update_info_cls = GlooUpdateInfo

    def __init__(self, *args) -> None:
        super().__init__(*args)
        self.info: GlooInitInfo | None = None
        self.group: ProcessGroupGloo | None = None

    def init_transfer_engine(self, init_info: GlooInitInfo) -> None:
        self.shutdown()
        store = wire.store(init_info.master_address, init_info.master_port, init_info.timeout_seconds)
        config = self.parallel_config
        rank = init_info.rank_offset + config.data_parallel_index * config.world_size + config.rank
        here = address_towards(init_info.master_address, init_info.master_port)
        self.group = wire.join(store, init_info.group, rank, init_info.world_size, here, init_info.timeout_seconds)
        self.info = init_info

    def start_weight_update(self) -> None:
        if self.group is None:
            raise RuntimeError("this server is in no transfer group; call init_weight_transfer_engine first")
        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def update_weights(self, update_info: dict) -> None:
        """As the base class does it, without its torch.accelerator.synchronize(), which needs an accelerator."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: GlooUpdateInfo) -> None:
        dtypes = [getattr(torch, d) for d in update_info.dtype_names]

        def get(buffer: torch.Tensor) -> None:
            wire.broadcast(self.group, buffer, self.info.timeout_seconds)

        try:
            limit = self.info.packed_buffer_size_bytes
            for part in wire.receive(update_info.names, dtypes, update_info.shapes, limit, self.device, get):
                self.model.load_weights(part)
        except BaseException:
            self.forget()
            self.shutdown()
            raise

    def forget(self) -> None:
        """Gives up an update: what layers hold back is dropped, and their tensors are put back in place."""
        for layer in self.model.modules():
            info = get_layerwise_info(layer)
            if info.can_load():
                info.loaded_weights.clear()
                info.load_numel = 0
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        self.group = self.info = None


def address_towards(host: str, port: int) -> str:
    """This machine's address on the way to the trainer; nothing is sent."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.connect((host, port))
        return s.getsockname()[0]
