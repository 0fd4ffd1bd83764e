"""Child processes of this machine, each of which makes one planned run after the other.

Parent and child (`raylfl.startup.process.start_child`) send each other pickled objects through a socket. If the parent
closes its end, or is killed, a child at work ends its run with a checkpoint, as after Ctrl-C, and other children end at
once.
"""

import os
import queue
import signal
import subprocess
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from typing import Any

from raylfl.errors import RaylflError
from raylfl.execution.planned import PlannedRun
from raylfl.startup import process

GRACE_SECONDS = 10.0  # for the current round of an ended run; then its process is killed
NOTICE = b"raylfl: stopping the runs after their rounds, with checkpoints; once more ends at once\n"


Child = tuple[subprocess.Popen[bytes], Connection]  # a child process and the parent's end of the socket


def in_processes(runs: Sequence[PlannedRun], environments: Sequence[Mapping[str, str]]) -> Iterator[PlannedRun]:
    """Makes the runs in one child per environment (variables), in parallel; yields each run when it has ended.

    Raises the error of the first run that fails. On an error, Ctrl-C or `close`, the other runs are ended after their
    current round, with a checkpoint; those that need more than GRACE_SECONDS are killed.
    """
    waiting = list(reversed(runs))
    children: list[Child] = []
    try:
        for environment in environments:
            children.append(process.start_child("raylfl.execution.processes", environment))
        at_work: dict[Any, tuple[Child, PlannedRun]] = {}
        idle = list(children)
        while waiting or at_work:
            while waiting and idle:
                child, run = idle.pop(), waiting.pop()
                with suppress(OSError):  # it has ended, as `_require_success` says
                    child[1].send(run)
                at_work[child[1]] = child, run
            for connection in wait(list(at_work)):
                child, run = at_work.pop(connection)
                _require_success(child, run)
                idle.append(child)
                yield run
    except KeyboardInterrupt:
        os.write(2, NOTICE)
        raise
    finally:
        _end(children)


def _require_success(child: Child, run: PlannedRun) -> None:
    """Raises the error of the run that the child was sent, if it did not end without one."""
    try:
        error, text = child[1].recv()
    except (EOFError, OSError):
        code = child[0].wait()
        what = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        raise RaylflError(f"{run.label}: its process ended unexpectedly ({what}; is the memory used up?)") from None
    if error is not None:
        raise error from RaylflError(text)  # --debug shows it


def _end(children: Sequence[Child]) -> None:
    for _, connection in children:
        connection.close()
    deadline = time.monotonic() + GRACE_SECONDS
    try:
        for child, _ in children:
            with suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for child, _ in children:
            child.kill()
            child.wait()


def serve(handle: int) -> None:
    """Makes the runs that the parent sends through this socket, and answers each with (error or None, traceback)."""
    connection = Connection(handle)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in jobs of the background
    process.set_up()
    runs: queue.SimpleQueue[PlannedRun] = queue.SimpleQueue()

    def receive() -> None:
        try:
            while True:
                runs.put(connection.recv())
        except (EOFError, OSError):  # the parent has closed its end
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # no rounds are under way
                os._exit(1)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the parent has printed the notice
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(GRACE_SECONDS)
            os._exit(1)

    threading.Thread(target=receive, daemon=True, name="raylfl parent").start()
    while True:
        error, text = None, ""
        try:
            runs.get().make()
        except BaseException as raised:
            error, text = raised, traceback.format_exc()
        try:
            connection.send((error, text))
        except OSError:
            os._exit(1)
        except Exception:  # it cannot be pickled
            connection.send((RaylflError(f"{type(error).__name__}: {error}"), text))
