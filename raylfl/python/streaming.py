"""The rounds of a run as an iterator, for loops in place of callbacks."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import TYPE_CHECKING, Unpack

from raylfl.config.load import Source, load_config
from raylfl.config.objects import Objects, object_layer
from raylfl.errors import RaylflError
from raylfl.python.api import Rounds, check_runtime, checked, new_run_directory, rounds_of
from raylfl.python.control import Progress
from raylfl.python.result import Result, result_of

if TYPE_CHECKING:
    from raylfl.experiment.parts import Experiment
    from raylfl.runtime.records.run_dir import RunDirectory


class Stream:
    """The rounds of a run as an iterator: `for round in raylfl.stream("digits"): ...`.

    Each item is a `Progress` with metrics and parameters; the workers wait until the next item is requested. After
    `break` or `stop`, reading `result` ends the run as finished. After `close`, or at the end of a `with` block,
    `raylfl.resume` can continue the run. The run uses a separate thread; the caller's thread handles Ctrl-C.
    """

    def __init__(self, experiment: Experiment, run: ExitStack, run_dir: RunDirectory):
        self.run_dir = run_dir.path
        self._thread = ThreadPoolExecutor(1, "raylfl")
        self._rounds = rounds_of(experiment, run_dir, False, True)
        self._config, self._directory = experiment.config, run_dir
        self._reason: str | None = None
        self._result: Result | None = None
        self._end = weakref.finalize(self, _left, self._thread, self._rounds, run)
        self._end.atexit = False  # the run's thread has ended by then

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Progress:
        if self._result is not None or not self._end.alive:
            raise StopIteration
        try:
            return self._thread.submit(_next_of, self._rounds, self._reason).result()
        except _Over:
            self._result = result_of(self._config, self._directory)
            self._end()
            raise StopIteration from None
        except BaseException:
            self._end()
            raise

    def stop(self, reason: str = "stopped by the caller") -> None:
        """Requests the end of the run after its newest round, with the same effect as early stopping.

        The run ends when the next item or `result` is requested. reason: the text for `Result.stopped_early`.
        """
        self._reason = reason

    @property
    def result(self) -> Result:
        """The result of the run. If rounds remain, the run is ended after its newest round.

        Raises RaylflError if the stream was closed before the run ended.
        """
        if self._result is None and self._end.alive:
            self.stop(self._reason or "the loop over its rounds was left")
            for _ in self:
                pass
        if self._result is None:
            raise RaylflError(f"the stream was closed before the run ended: raylfl.resume({str(self.run_dir)!r})")
        return self._result

    def close(self) -> None:
        """Ends the workers and closes the run directory.

        `raylfl.resume` continues the run from the newest checkpoint.
        """
        self._end()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


class _Over(Exception):
    """The error that replaces StopIteration at the end of the rounds: a Future cannot raise StopIteration."""


def _next_of(rounds: Rounds, reason: str | None) -> Progress:
    try:
        return rounds.send(reason)
    except StopIteration:
        raise _Over from None


def _left(thread: ThreadPoolExecutor, rounds: Rounds, run: ExitStack) -> None:
    """Ends a run: closes its generator of rounds in the run's thread, ends the thread, and closes the run directory.

    run: the stack that holds the context of the run directory.
    """
    thread.submit(rounds.close).result()
    thread.shutdown()
    run.close()


def stream(source: Source, overrides: Sequence[str] = (), **objects: Unpack[Objects]) -> Stream:
    """Starts a run and returns its rounds as an iterator (`Stream`).

    The arguments have the same meaning as in `raylfl.run`. Raises BadConfig for mistakes, before anything is started.
    """
    experiment = checked(load_config(source, overrides, object_layer(objects), check_runtime))
    run = ExitStack()
    return Stream(experiment, run, run.enter_context(new_run_directory(experiment, quiet=False)))
