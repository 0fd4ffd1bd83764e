"""Detection of things that a test module leaves behind: processes, environment variables, threads."""

import os
import threading
import time

import psutil

HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")  # Python's own, one per process
THREADS = ("raylfl_", "tqdm", "TMonitor")  # threads of permanent pools
# variables that libraries set on import
VARIABLES = (
    "PYTEST_",
    "KMP_",
    "OMP_",
    "MKL_",
    "PYTORCH_",
    "TORCH",
    "TRITON_",
    "CUDA_",
    "RAY_",
    "PYTHONBREAKPOINT",  # Ray's
    "TUNE_",
    "GRPC_",
    "CRC32C_",
)
PATIENCE = 10.0  # seconds that a process may take to end


def present() -> set[str]:
    """The present processes, environment variables and threads, one line each."""
    return processes() | variables() | threads()


def processes() -> set[str]:
    found = set()
    for child in psutil.Process().children(recursive=True):
        try:
            command = " ".join(child.cmdline())
            if child.status() != psutil.STATUS_ZOMBIE and not any(helper in command for helper in HELPERS):
                found.add(f"process {child.pid}: {command[:100]}")
        except psutil.Error:  # it ended meanwhile
            continue
    return found


def variables() -> set[str]:
    return {f"variable {name}={value[:60]}" for name, value in os.environ.items() if not name.startswith(VARIABLES)}


def threads() -> set[str]:
    living = [thread for thread in threading.enumerate() if not thread.daemon]
    return {f"thread {thread.name}" for thread in living if not thread.name.startswith(THREADS)}


def left_behind(before: set[str]) -> list[str]:
    """The new lines after a short wait; removed and changed variables count as well."""
    end = time.monotonic() + PATIENCE
    while (extra := _changes(before)) and time.monotonic() < end:
        time.sleep(0.1)
    return sorted(extra)


def _changes(before: set[str]) -> set[str]:
    now = present()
    gone = {line for line in before - now if line.startswith("variable")}
    return (now - before) | {f"{line} (gone)" for line in gone}
