"""Signal handling: the first Ctrl-C or SIGTERM ends a run after the current round, the second one at once."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], None]
NOTICE = b"raylfl: stopping after this round, with a checkpoint; once more ends at once\n"


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """A context in which the first SIGINT or SIGTERM calls `stop`, and the second raises KeyboardInterrupt.

    An exception that `stop` raises is raised in the context.
    """
    requested = False

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal requested
        if requested:
            raise KeyboardInterrupt
        requested = True
        stop()
        os.write(2, NOTICE)  # not through sys.stderr, whose lock the interrupted code may hold

    with handlers_kept(signal.SIGINT, signal.SIGTERM, within=handle):
        yield


@contextmanager
def sigterm_interrupts() -> Iterator[None]:
    """A context in which SIGTERM (`ray job stop`, Slurm) acts as Ctrl-C: it calls the current handler of SIGINT.

    If SIGINT is ignored, as in background jobs, SIGTERM raises KeyboardInterrupt.
    """

    def handle(number: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(signal.SIGINT)
        (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)

    with handlers_kept(signal.SIGTERM, within=handle):
        yield


@contextmanager
def time_limit(seconds: float | None) -> Iterator[None]:
    """A context in which TimeoutError is raised after `seconds`, and again after each further `seconds`.

    No effect if `seconds` is None, or outside the main thread.
    """
    if seconds is None or not _in_main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"no answer within {seconds:g} s (runtime.client_timeout)")

    with handlers_kept(signal.SIGALRM, within=handle):
        left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, left, interval)  # restarts an outer alarm, which may be late


@contextmanager
def handlers_kept(*numbers: int, within: Handler | None = None) -> Iterator[None]:
    """A context whose end restores the handlers of these signals; no effect outside the main thread.

    within: the function that these signals call in the context.
    """
    if not _in_main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        if within is not None:
            for number in numbers:
                signal.signal(number, within)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
