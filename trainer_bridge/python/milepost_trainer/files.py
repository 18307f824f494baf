"""Directories that appear whole or not at all."""

import contextlib
import ctypes
import errno
import glob
import os
import shutil

from milepost_trainer.errors import TrainerError

RENAME_EXCHANGE = 2
AT_FDCWD = -100


@contextlib.contextmanager
def directory(path: str, sync: bool = False):
    """Yields a temporary directory beside `path` that takes its place at the end; an exception leaves nothing behind.

    What was at `path` is swapped out in one step and then removed, so a reader sees the old or the new one. With sync,
    every file and the directory reach the disk first.
    """
    path = os.path.abspath(path)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    remove_left_over(path)
    tmp = f"{path}.tmp-{os.getpid()}"
    os.mkdir(tmp)
    try:
        yield tmp
        if sync:
            for parent, _, names in os.walk(tmp, topdown=False):
                for name in names:
                    fsync(os.path.join(parent, name))
                fsync(parent)
        if os.path.exists(path):
            exchange(tmp, path)
        else:
            os.rename(tmp, path)
        if sync:
            fsync(os.path.dirname(path))
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


def absent(path: str) -> None:
    """Refuses to write where something is: what `directory` replaces is gone."""
    if os.path.exists(path):
        raise TrainerError("conflict", f"{path} exists; allowed: a directory that does not")


def walk(path: str) -> list[str]:
    """The files below a directory, as sorted paths relative to it."""
    return sorted(os.path.relpath(os.path.join(parent, n), path) for parent, _, names in os.walk(path) for n in names)


def remove_left_over(path: str) -> None:
    """Removes temporary directories of processes that were killed before they could (and of this one)."""
    for old in glob.glob(glob.escape(path) + ".tmp-*"):
        owner = old.rsplit("-", 1)[1]
        if owner.isdigit() and (int(owner) == os.getpid() or not os.path.exists(f"/proc/{owner}")):
            shutil.rmtree(old, ignore_errors=True)


def fsync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def exchange(a: str, b: str) -> None:
    """Swaps two paths atomically (renameat2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(AT_FDCWD, os.fsencode(a), AT_FDCWD, os.fsencode(b), RENAME_EXCHANGE) == 0:
        return
    code = ctypes.get_errno()
    if code not in (errno.EINVAL, errno.ENOSYS):
        raise OSError(code, os.strerror(code), b)
    # A file system without the swap: two renames, between which the path is missing for an instant.
    aside = f"{a}.old"
    os.rename(b, aside)
    os.rename(a, b)
    os.rename(aside, a)
