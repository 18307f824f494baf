"""Resident test runner: one process that has unittest imported and forks a child for every run of a task's tests.

Started as `python3 -c SOURCE OPTIONS`, OPTIONS being a JSON object:
  confined  whether this process has a process namespace of its own; then everything else in it is killed after a run
  clean     directories to be emptied after a run (private ones of the sandbox, never the host's)

Protocol, one JSON object a line. On standard output first {"ready": true}; then, for every request on standard input,
exactly one answer, in order:
  request  nonce, dir (the tree's copy), args (what follows `-m unittest`), tests (ids "pkg.mod.Class.test_x"), env,
           timeout (seconds), log_bytes (how much of the child's output to keep), result_bytes (the same of results)
  answer   nonce, results (text: a line {"test" or "container", "state"} for each as it ended), log (text), truncated,
           timeout, ended (the child came to its own end), exit, signal (0 where none), seconds

Invariants. The parent never imports code of a tree and never reads what a child writes as anything but bytes. The
child has neither the request nor the answer stream. An answer is written only when no process of the run is left.
Where that cannot be had the parent exits, and whoever started it starts another. End of input ends the parent.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import sys
import time
import traceback
import unittest

WORST = {None: 0, "PASSED": 1, "SKIPPED": 2, "FAILED": 3, "ERROR": 4}
END = b'{"end": true}\n'


class Recorder(unittest.TestResult):
    """Writes the state of each test when it has ended; the worst of its parts (sub-tests, tear-down) counts."""

    def __init__(self, emit):
        super().__init__()
        self.emit = emit
        self.current = None
        self.state = None

    def startTest(self, test):
        super().startTest(test)
        self.current, self.state = test.id(), None

    def stopTest(self, test):
        super().stopTest(test)
        if self.state is not None:
            self.emit(test=self.current, state=self.state)
        self.current = None

    def note(self, test, state, err=None):
        if err is not None:
            report(state, test, err)
        if self.current is None:  # set-up or tear-down of a class or module: "setUpClass (pkg.mod.Class)"
            self.emit(container=test.id().partition(" (")[2].rstrip(")"), state=state)
        elif WORST[state] > WORST[self.state]:
            self.state = state

    def addSuccess(self, test):
        self.note(test, "PASSED")

    def addFailure(self, test, err):
        self.note(test, "FAILED", err)

    def addError(self, test, err):
        self.note(test, "ERROR", err)

    def addSkip(self, test, reason):
        self.note(test, "SKIPPED")

    def addExpectedFailure(self, test, err):
        self.note(test, "PASSED")

    def addUnexpectedSuccess(self, test):
        self.note(test, "FAILED")

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.note(test, "FAILED" if issubclass(err[0], test.failureException) else "ERROR", err)


def report(state, what, err):
    """Print a failure for people; the log is not read for results."""
    with contextlib.suppress(BaseException):  # tested code may have replaced the stream, or its error may not print
        print(f"{state}: {what}", file=sys.stderr)
        traceback.print_exception(*err, limit=-8, file=sys.stderr)


def search_path(args, root):
    """The directories that `python3 -m unittest ARGS` in root puts before sys.path."""
    start, top, positional, discover = ".", None, [], False
    rest = list(args)
    while rest:
        arg = rest.pop(0)
        name, equals, value = arg.partition("=")
        if name in ("-s", "--start-directory", "-t", "--top-level-directory", "-p", "--pattern", "-k"):
            value = value if equals else (rest.pop(0) if rest else "")
            if name in ("-s", "--start-directory"):
                start = value
            elif name in ("-t", "--top-level-directory"):
                top = value
        elif arg == "discover" and not positional:
            discover = True
        elif not arg.startswith("-"):
            positional.append(arg)
    if discover:
        start = positional[0] if positional else start
        top = positional[2] if len(positional) > 2 else top
    elif positional:
        return [root]
    if top is None:
        top = start if os.path.isdir(os.path.join(root, start)) else "."
    top = os.path.normpath(os.path.join(root, top))
    return [top] if top == root else [top, root]


def find_modules(tests, emit):
    """Import the modules of the tests. One that fails to import is reported as a container, a missing one is not."""
    found, failed = {}, set()
    for test in tests:
        parts = test.split(".")
        for n in range(max(len(parts) - 2, 1), 0, -1):
            name = ".".join(parts[:n])
            if name in found or name in failed:
                break
            try:
                found[name] = importlib.import_module(name)
                break
            except ModuleNotFoundError as err:
                if err.name and (name == err.name or name.startswith(err.name + ".")):
                    continue  # a class, or gone: try what is before the dot
                problem, state = sys.exc_info(), "ERROR"
            except unittest.SkipTest:
                problem, state = None, "SKIPPED"
            except BaseException:  # SystemExit at import is the tree's fault, too
                problem, state = sys.exc_info(), "ERROR"
            failed.add(name)
            if problem is not None:
                report(state, name, problem)
            emit(container=name, state=state)
            break
    return found


def cases(suite):
    for item in suite:
        if isinstance(item, unittest.BaseTestSuite):
            yield from cases(item)
        elif item is not None:
            yield item


def select_tests(modules, tests, emit):
    """The wanted tests of the modules, in the order in which unittest would run them."""
    wanted, chosen, loader = set(tests), [], unittest.TestLoader()
    for name, module in modules.items():
        try:
            for case in cases(loader.loadTestsFromModule(module)):
                if type(case).__module__ == "unittest.loader":  # load_tests failed
                    emit(container=name, state="ERROR")
                elif case.id() in wanted:
                    chosen.append(case)
        except BaseException:
            report("ERROR", name, sys.exc_info())
            emit(container=name, state="ERROR")
    return chosen


def child(request, output, results):
    """Run the tests in this process, which is the run's own, and exit."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.stdout = sys.__stdout__ = open(1, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = sys.__stderr__ = open(2, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115

    def emit(**line):
        os.write(results, json.dumps(line).encode() + b"\n")

    root = request["dir"]
    os.chdir(root)
    os.environ.update(request["env"])
    sys.argv = ["python3 -m unittest"] + request["args"]
    extra = [p for p in request["env"].get("PYTHONPATH", "").split(os.pathsep) if p]
    sys.path[:0] = search_path(request["args"], root) + [os.path.join(root, p) for p in extra]
    modules = find_modules(request["tests"], emit)
    unittest.TestSuite(select_tests(modules, request["tests"], emit)).run(Recorder(emit))
    os.write(results, END)


def spawn(request, streams):
    """Fork the child; return its process id and the reading ends of its output and results."""
    output, output_w = os.pipe()
    results, results_w = os.pipe()
    pid = os.fork()
    if pid:
        os.close(output_w)
        os.close(results_w)
        return pid, output, results
    code = 1
    try:
        for fd in (*streams, output, results):
            os.close(fd)
        child(request, output_w, results_w)
        code = 0
    except BaseException:  # nothing may reach the parent's code
        report("ERROR", "the run", sys.exc_info())
    finally:
        with contextlib.suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)  # no exit handlers, no waiting for threads


class Capture:
    """What came out of a pipe, up to a number of bytes; the rest is read and dropped."""

    def __init__(self, fd, limit):
        self.fd, self.limit, self.data, self.truncated, self.open = fd, limit, bytearray(), False, True
        os.set_blocking(fd, False)

    def read(self):
        """Read what is there now."""
        while self.open:
            try:
                piece = os.read(self.fd, 65536)
            except BlockingIOError:
                return
            if not piece:
                self.close()
                return
            room = self.limit - len(self.data)
            self.data += piece[:room]
            self.truncated = self.truncated or len(piece) > room
            if len(piece) < 65536:
                return

    def close(self):
        if self.open:
            self.open = False
            os.close(self.fd)


def watch(pid, captures, deadline):
    """Collect output until the child has ended or the time is over. Return the wait status, or None for the latter."""
    poll = select.poll()
    for c in captures:
        poll.register(c.fd, select.POLLIN)
    pidfd = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1
    if pidfd >= 0:
        poll.register(pidfd, select.POLLIN)
    try:
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return None
            ready = {fd for fd, _ in poll.poll(min(left, 3600 if pidfd >= 0 else 0.02) * 1000 + 1)}
            for c in captures:
                if c.fd in ready and c.open:
                    c.read()
                    if not c.open:
                        poll.unregister(c.fd)
            if pidfd < 0 or pidfd in ready:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    return status
    finally:
        if pidfd >= 0:
            os.close(pidfd)


def others():
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid())]


def kill_all(pid, status, confined):
    """Kill whatever the run left and return the child's wait status. Exits where something does not die."""
    if not confined:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        return os.waitpid(pid, 0)[1] if status is None else status
    for _ in range(2000):
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # everything in this namespace but process 1 and this one
        if status is None:
            status = os.waitpid(pid, 0)[1]
        if not others():
            return status
        time.sleep(0.001)
    sys.exit("processes of a run do not die")


def empty(directory):
    """Remove everything in the directory, or exit."""
    for entry in os.scandir(directory):
        if entry.is_dir(follow_symlinks=False):
            os.chmod(entry.path, 0o700)
            empty(entry.path)
            os.rmdir(entry.path)
        else:
            os.unlink(entry.path)


def serve(request, streams, options):
    begin = time.monotonic()
    pid, output, results = spawn(request, streams)
    log, lines = Capture(output, request["log_bytes"]), Capture(results, request["result_bytes"])
    status = watch(pid, (log, lines), begin + request["timeout"])
    timeout = status is None
    status = kill_all(pid, status, options["confined"])
    for c in (log, lines):
        c.read()  # what was on its way
        c.close()
    for directory in options["clean"]:
        empty(directory)
    signalled = os.WIFSIGNALED(status)
    return {
        "nonce": request["nonce"],
        "results": lines.data.decode("utf-8", "replace"),
        "log": log.data.decode("utf-8", "replace"),
        "truncated": log.truncated or lines.truncated,
        "timeout": timeout,
        "ended": not timeout and lines.data.endswith(END),
        "exit": 0 if signalled else os.WEXITSTATUS(status),
        "signal": os.WTERMSIG(status) if signalled else 0,
        "seconds": time.monotonic() - begin,
    }


def main():
    options = json.loads(sys.argv[1])
    if options["confined"] and len(others()) > 2:
        sys.exit(f"this process was told that it is confined, but sees other processes: {others()}")
    requests, answers = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)
    os.close(null)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.dont_write_bytecode = True
    sys.path[:] = [p for p in sys.path if p]
    gc.collect()
    gc.freeze()

    def answer(value):
        data = memoryview(json.dumps(value).encode() + b"\n")
        while data:
            data = data[os.write(answers, data) :]

    answer({"ready": True})
    with os.fdopen(requests, "rb", closefd=False) as lines:
        for line in lines:
            answer(serve(json.loads(line), (requests, answers), options))


if __name__ == "__main__":
    main()
