"""The set-up of raylfl's own processes: the command line and the actors."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from raylfl.startup import lazy_imports, malloc

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

WATCHER = """
import os, signal, sys, time
sys.stdin.read()
time.sleep(3)
for pid in sys.argv[2:]:
    try:
        with open(f"/proc/{pid}/cmdline") as file:
            if sys.argv[1] in file.read():
                os.kill(int(pid), signal.SIGKILL)
    except OSError:
        pass
"""


def set_up() -> None:
    """Applies `lazy_imports` and `malloc`, before Lightning is imported."""
    without_raylet_messages()
    lazy_imports.install()
    malloc.keep()


def without_raylet_messages() -> None:
    """Switches off raylets' messages, which Ray prints even with log_to_driver=False, before it is imported."""
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")


def start_child(module: str, environment: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], Connection]:
    """Starts a new Python with the function `serve` of this module, and further variables of the environment.

    Returns the process and an end of a socket; `serve` gets the file descriptor of the other end, which is closed when
    this process ends. The caller's script is not imported again.
    """
    from multiprocessing.connection import Connection

    here, there = socket.socketpair()
    with there:
        code = f"import sys; sys.path[:] = {sys.path!r}; from {module} import serve; serve({there.fileno()})"
        child = subprocess.Popen(
            [sys.executable, "-c", code],
            pass_fds=[there.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, **environment},
            start_new_session=True,  # Ctrl-C in a terminal reaches the parent only, which ends the children
        )
    return child, Connection(here.detach())


def kill_after_me(pids: Sequence[int], word: str) -> subprocess.Popen[bytes]:
    """Starts a process that kills the processes `pids` three seconds after the end of this process.

    word: must be in a process's command line, as its number may be that of another one by then. The caller ends the
    returned process when the others have ended in another way.
    """
    command = [sys.executable, "-I", "-S", "-c", WATCHER, word, *map(str, pids)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)


def work_in(folder: str) -> None:
    """Changes the working directory, to which relative paths in a config refer, if this node has the folder."""
    if os.path.isdir(folder):
        os.chdir(folder)
