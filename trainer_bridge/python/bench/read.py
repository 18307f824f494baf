"""Reads a batch file as the trainer does and tells how long it took.

    read.py FILE

For each SHA-256 on standard input it prints the seconds of batch.load, and those of parsing the mapped file alone.
BenchmarkBridge (batch_bench_test.go) asks it.
"""

import mmap
import sys
import time

from milepost_trainer import batch


def main(path: str) -> None:
    for line in sys.stdin:
        started = time.perf_counter()
        batch.load(path, line.strip())
        loaded = time.perf_counter()
        with open(path, "rb") as f:
            batch.parse(path, mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ))
        print(loaded - started, time.perf_counter() - loaded, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
