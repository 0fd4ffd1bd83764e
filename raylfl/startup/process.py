"""The set-up of raylfl's own processes: the command line and the actors."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence

from raylfl.startup import lazy_imports, malloc

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
    """Switches off the error messages of raylets, which Ray prints on stdout even with log_to_driver=False.

    Ray reads this setting when it is imported. raylfl reports lost workers itself.
    """
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "^")


def kill_after_me(pids: Sequence[int], word: str) -> subprocess.Popen[bytes]:
    """Starts a process that kills the processes `pids` three seconds after the end of this process.

    word: a process is killed only if this word is in its command line, as its number may be that of another one by
    then. The caller ends the returned process when the others have ended in another way.
    """
    command = [sys.executable, "-I", "-S", "-c", WATCHER, word, *map(str, pids)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)


def work_in(folder: str) -> None:
    """Changes the working directory, to which relative paths in a config refer, if this node has the folder."""
    if os.path.isdir(folder):
        os.chdir(folder)
