"""The set-up of raylfl's own processes: the command line and the actors."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing import connection

from raylfl.startup import collector, lazy_imports, malloc


def set_up() -> None:
    """Applies `collector`, `lazy_imports` and `malloc`, before Lightning is imported.

    The caller calls `collector.as_usual` when the imports are done.
    """
    collector.rarely()
    lazy_imports.install()
    malloc.keep()


def set_up_child() -> None:
    """Applies `set_up` in a process of `multiprocessing`, and ends the process once its parent has ended.

    A killed parent cannot end its children, which would wait for their next task for ever. A run that is under way
    there continues from its newest checkpoint when it is resumed.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        connection.wait([parent.sentinel])
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True, name="raylfl parent").start()
    set_up()


def work_in(folder: str) -> None:
    """Changes the working directory, to which relative paths in a config refer, if this node has the folder."""
    if os.path.isdir(folder):
        os.chdir(folder)
