"""Attempts to get out of a sandbox. usage: escape.py ATTEMPT

Each attempt is a function that returns what it got hold of, or raises. What the attempts go for is described in the
environment variable ESCAPE (see the type outside in escape.go). None does harm where it succeeds, so that the suite can
show, without a sandbox, that they would.
"""

import ctypes
import json
import os
import shutil
import socket
import subprocess
import sys

OUTSIDE = json.loads(os.environ["ESCAPE"])
VICTIM = OUTSIDE["victim"]
libc = ctypes.CDLL(None, use_errno=True)


def read(path):
    with open(path, "rb") as f:
        return f.read(65536).decode(errors="replace")


def must(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def any_of(attempts):
    """The first that succeeds; the last failure where none does."""
    failure = OSError("nothing to try")
    for attempt in attempts:
        try:
            return attempt()
        except (OSError, ValueError) as e:
            failure = e
    raise failure


def opened(paths, flags):
    """The first of the files that can be opened."""
    fd = any_of([lambda p=p: os.open(p, flags) for p in paths])
    return "swordfish: " + os.readlink(f"/proc/self/fd/{fd}")


def host_file():
    return read(OUTSIDE["secret"])


def host_file_by_link():
    if os.path.lexists("evil"):
        os.remove("evil")
    os.symlink(OUTSIDE["secret"], "evil")
    return read("evil")


def host_file_by_hard_link():
    if os.path.lexists("hard"):
        os.remove("hard")
    os.link(OUTSIDE["near"], "hard")
    return read("hard")


def host_file_by_proc():
    roots = [
        "/proc/1/root",
        "/proc/self/root",
        "/proc/1/cwd/../../../../../../..",
        "/proc/self/cwd/../../../../../../..",
        f"/proc/{os.getppid()}/root",
    ]
    return any_of([lambda r=r: read(r + OUTSIDE["secret"]) for r in roots])


def host_file_by_process():
    """Through a process outside, whose working directory holds the file."""
    return any_of([lambda p=p: read(f"/proc/{VICTIM}/{p}") for p in ("cwd/secret", "root" + OUTSIDE["secret"])])


def host_file_by_handle():
    """open_by_handle_at of inode 2, the root of the file system that the workspace lies on."""

    class Handle(ctypes.Structure):
        _fields_ = [("bytes", ctypes.c_uint), ("type", ctypes.c_int), ("ino", ctypes.c_uint), ("gen", ctypes.c_uint)]

    at = os.open(".", os.O_RDONLY)
    fd = must(libc.open_by_handle_at(at, ctypes.byref(Handle(8, 1, 2, 0)), os.O_RDONLY))
    return "swordfish: " + " ".join(os.listdir(fd))


def host_environment():
    return read(f"/proc/{VICTIM}/environ")


def own_environment():
    """What the owner of the sandbox has in its environment."""

    def look(pid):
        if OUTSIDE["variable"] not in read(f"/proc/{pid}/environ").split("\0"):
            raise ValueError("not there")
        return "swordfish"

    return any_of([lambda p=p: look(p) for p in ("self", "1", str(os.getppid()))])


def wanted(text):
    if "swordfish" not in text:
        raise ValueError("not there")
    return text


def grader_tests():
    """The hidden tests in the workspace of another sandbox."""
    found = []
    for place, depth in (("/", "4"), (os.getcwd() + "/../../..", "6")):
        find = ["find", place, "-maxdepth", depth, "-not", "-path", "/proc/*", "-name", "grader_tests.py"]
        found += subprocess.run(find, capture_output=True, text=True).stdout.split()
    return any_of([lambda p=p: wanted(read(p)) for p in found])


def other_sandbox_process():
    """A process of another sandbox, by its command line."""

    def look(pid):
        return lambda: wanted(read(f"/proc/{pid}/cmdline"))

    return any_of([look(p) for p in os.listdir("/proc") if p.isdigit() and int(p) != os.getpid()])


def tcp():
    with socket.create_connection(("127.0.0.1", OUTSIDE["port"]), 5) as s:
        return s.recv(100).decode()


def udp():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        s.settimeout(1)
        s.connect(("127.0.0.1", OUTSIDE["port"]))
        s.send(b"x")
        return s.recv(100).decode()


def abstract_socket():
    with socket.socket(socket.AF_UNIX) as s:
        s.connect("\0" + OUTSIDE["abstract"])
        return s.recv(100).decode()


def engine_socket():
    """The socket of the Docker engine, or what stands for it."""

    def connect(path):
        with socket.socket(socket.AF_UNIX) as s:
            s.connect(path)
            return "swordfish from " + path

    return any_of([lambda p=p: connect(p) for p in OUTSIDE["sockets"]])


def signal_outside():
    os.kill(VICTIM, 0)
    if "sleep" not in read(f"/proc/{VICTIM}/cmdline"):
        raise ValueError("another process of that number")
    return "swordfish"


def ptrace_outside():
    must(libc.ptrace(16, VICTIM, 0, 0))  # PTRACE_ATTACH
    os.waitpid(VICTIM, 0x40000000)  # __WALL
    libc.ptrace(17, VICTIM, 0, 0)  # PTRACE_DETACH
    return "swordfish"


def memory_outside():
    with open(f"/proc/{VICTIM}/mem", "r+b"):
        return "swordfish"


def privileges():
    """A capability, in whatever set, or the possibility to gain one."""
    status = dict(line.split(":\t", 1) for line in read("/proc/self/status").splitlines() if ":\t" in line)
    got = [k for k in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb") if int(status[k], 16)]
    if status["NoNewPrivs"] != "1":
        got.append("NoNewPrivs")
    if not got:
        raise PermissionError("none")
    return "swordfish: " + " ".join(got)


def setuid_program():
    """A set-user-id program of one's own, which here sees whether it may become another user."""

    def run(path):
        shutil.copy("/usr/bin/env", path)
        try:
            os.chown(path, 12345, 12345)
            os.chmod(path, 0o6755)
            out = subprocess.run([path, "grep", "^Uid", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
        finally:
            os.remove(path)
        if "12345" not in out:
            raise PermissionError(out)
        return "swordfish"

    return any_of([lambda p=p: run(f"{p}/milepost-setuid-{os.getpid()}") for p in (os.getcwd(), "/var/tmp", "/tmp")])


def become_another():
    pid = os.fork()
    if pid == 0:
        try:
            os.setuid(23456)
            os._exit(0)
        except OSError:
            os._exit(1)
    if os.waitpid(pid, 0)[1]:
        raise PermissionError("setuid")
    return "swordfish"


def namespace(flag):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if libc.unshare(flag) == 0 else 1)
    if os.waitpid(pid, 0)[1]:
        raise PermissionError("unshare")
    return "swordfish"


def mount_namespace():
    return namespace(0x20000)


def user_namespace():
    return namespace(0x10000000)


def mount():
    os.makedirs("mountpoint", exist_ok=True)
    must(libc.mount(b"x", b"mountpoint", b"tmpfs", 0, None))
    libc.umount(b"mountpoint")
    return "swordfish"


def remount_root():
    """The root writable: what a read-only image must not allow. Bound to itself first, the host's own is not touched."""
    os.makedirs("bound", exist_ok=True)
    must(libc.mount(b".", b"bound", None, 4096, None))
    try:
        must(libc.mount(None, b"bound", None, 4096 | 32, None))
    finally:
        libc.umount2(b"bound", 2)
    return "swordfish"


def chroot():
    pid = os.fork()
    if pid == 0:
        try:
            os.chroot(".")
            os._exit(0)
        except OSError:
            os._exit(1)
    if os.waitpid(pid, 0)[1]:
        raise PermissionError("chroot")
    return "swordfish"


def device_node():
    if os.path.lexists("node"):
        os.remove("node")
    os.mknod("node", 0o20666, os.makedev(1, 3))
    return "swordfish"


def devices():
    names = ["mem", "kmem", "port", "kmsg", "sda", "vda", "nvme0n1", "loop-control", "kvm", "fuse", "net/tun", "mapper/control"]
    return opened(["/dev/" + n for n in names], os.O_RDONLY | os.O_NONBLOCK)


def rewrite(path):
    """Writes what is there already."""
    with open(path, "rb") as f:
        old = f.read()
    with open(path, "wb") as f:
        f.write(old)
    return "swordfish: " + path


def kernel_settings():
    base = "/proc/sys/"
    names = ["kernel/core_pattern", "kernel/modprobe", "vm/overcommit_memory", "vm/panic_on_oom", "fs/binfmt_misc/register"]
    return any_of([lambda n=n: rewrite(base + n) for n in names])


def sysrq():
    return opened(["/proc/sysrq-trigger"], os.O_WRONLY)


def control_groups():
    """The groups that limit the sandbox, and their release agent."""
    names = [
        "cgroup.procs",
        "memory/cgroup.procs",
        "pids/cgroup.procs",
        "memory/release_agent",
        "memory.max",
        "memory/memory.limit_in_bytes",
    ]
    return opened(["/sys/fs/cgroup/" + n for n in names], os.O_WRONLY)


def keyring():
    """A key of the user that the sandbox's owner is, or of its session."""

    def keyctl(*args):
        return must(libc.syscall(250, *args))

    buf = ctypes.create_string_buffer(100)

    def search(ring):
        key = keyctl(10, ring, b"user", OUTSIDE["key"].encode(), 0)  # KEYCTL_SEARCH
        size = keyctl(11, key, buf, 100)  # KEYCTL_READ
        return buf.raw[:size].decode()

    return any_of([lambda r=r: search(r) for r in (-4, -5, -3)])


def system_files():
    """Places of the system that could be written: tried with a file that is removed again."""
    wrote = []
    for d in (
        "/",
        "/usr",
        "/usr/bin",
        "/usr/local/bin",
        "/etc",
        "/bin",
        "/lib",
        "/sbin",
        "/root",
        "/home",
        "/var",
        "/run",
        "/opt",
        "/sys",
        "/proc",
    ):
        try:
            with open(d + "/milepost-escape", "x"):
                os.remove(d + "/milepost-escape")
                wrote.append(d)
        except OSError:
            pass
    if not wrote:
        raise PermissionError("none")
    return "swordfish: " + " ".join(wrote)


def main():
    try:
        got = globals()[sys.argv[1]]()
    except (OSError, ValueError, subprocess.CalledProcessError) as e:
        print("held:", e)
        return
    print("swordfish" if "swordfish" in got else "held: " + got[:500], got[:500])


main()
