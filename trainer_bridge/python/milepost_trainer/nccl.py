"""NCCL between the trainer and a replica's workers, for transfer.py, by NCCL's own C interface.

The other side is vLLM's NCCL engine, which joins by a unique id and begins with an all-reduce of one element. torch's process
groups cannot take part: they exchange their ids by a protocol of their own. The functions and their arguments are those of
nccl.h, stable since NCCL 2.3; ncclCommAbort frees a trainer whose replica died.
"""

import ctypes
import time
from collections.abc import Callable

import torch
from torch import Tensor

UINT8, FLOAT32, SUM = 1, 7, 0  # ncclDataType_t and ncclRedOp_t


class UniqueId(ctypes.Structure):
    _fields_ = (("internal", ctypes.c_byte * 128),)


def library():
    """The NCCL that torch has loaded."""
    return ctypes.CDLL("libnccl.so.2")


def check(lib, result: int) -> None:
    if result != 0:
        lib.ncclGetErrorString.restype = ctypes.c_char_p
        raise RuntimeError(f"NCCL: {lib.ncclGetErrorString(result).decode()}")


def unique_id(lib=None) -> bytes:
    lib, out = lib or library(), UniqueId()
    check(lib, lib.ncclGetUniqueId(ctypes.byref(out)))
    return bytes(out)


class Communicator:
    """Rank 0 of a group. The constructor returns once all have joined; its caller bounds that wait."""

    def __init__(self, unique: bytes, size: int, device: torch.device, timeout: float, lib=None):
        self.lib, self.device, self.comm = lib or library(), device, ctypes.c_void_p()
        torch.cuda.set_device(device)  # of this thread
        self.stream = torch.cuda.Stream(device)
        given = UniqueId.from_buffer_copy(unique)
        check(self.lib, self.lib.ncclCommInitRank(ctypes.byref(self.comm), size, given, 0))
        one = torch.zeros(1, device=device)
        self._run(lambda s: self.lib.ncclAllReduce(_at(one), _at(one), ctypes.c_size_t(1), FLOAT32, SUM, self.comm, s), timeout)

    def broadcast(self, buffer: Tensor, timeout: float, alive: Callable[[], bool] = lambda: True) -> None:
        """The buffer [bytes], on the device, to all."""
        count = ctypes.c_size_t(buffer.numel())
        self._run(lambda s: self.lib.ncclBroadcast(_at(buffer), _at(buffer), count, UINT8, 0, self.comm, s), timeout, alive)

    def _run(self, enqueue, timeout: float, alive: Callable[[], bool] = lambda: True) -> None:
        self.stream.wait_stream(torch.cuda.current_stream(self.device))  # what is sent must be there
        check(self.lib, enqueue(ctypes.c_void_p(self.stream.cuda_stream)))
        done = torch.cuda.Event()
        done.record(self.stream)
        deadline = time.monotonic() + timeout
        while not done.query():
            if time.monotonic() > deadline or not alive():
                self.close()
                raise TimeoutError(f"no progress for {timeout:g} s, or given up")
            time.sleep(1e-4)

    def close(self) -> None:
        """Ends whatever runs on the device and frees it; harmless a second time."""
        if self.comm is not None:
            self.lib.ncclCommAbort(self.comm)
            self.comm = None


def _at(t: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(t.data_ptr())
