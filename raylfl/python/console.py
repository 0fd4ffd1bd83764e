"""The output of commands: tables, and the progress of runs as a live display in a terminal, elsewhere as lines."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, JustifyMethod
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.status import Status
from rich.table import Table
from rich.text import Text

from raylfl.errors import visible
from raylfl.python.control import in_notebook

if TYPE_CHECKING:
    from raylfl.experiment.parts import Experiment
    from raylfl.python.control import Progress as RunProgress

PLAIN_SECONDS = 2.0  # time between progress lines without a terminal
UNFOLDED = 10_000  # width without a terminal: one line per table row, for grep and awk


class _Console(Console):
    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)


def console(highlight: bool = False, **options: Any) -> Console:
    """A console that has bars and colours only if stdout is a terminal; control characters in texts are escaped.

    FORCE_COLOR is ignored: Jupyter sets it for the commands of a notebook, and redirected output would get colours.
    """
    terminal = sys.stdout.isatty()
    return _Console(highlight=highlight, emoji=False, force_terminal=terminal, force_jupyter=False, **options)


def say(text: str) -> None:
    """Prints a text on stdout without wrapping lines: paths stay whole."""
    console(soft_wrap=True, markup=False).print(text)


def shown(path: Path) -> str:
    """A path as text for the user, relative to the working directory if it is inside that directory."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)


def working(text: str) -> Status:
    """A context in which a terminal shows this text with a spinner; without a terminal nothing is shown."""
    return console(markup=False).status(text)


def status_line(metrics: Mapping[str, Any]) -> str:
    """A line of a round's common metrics: `train 0.8136  test 1.9170  28.41%  f1 0.8911`.

    Without a test set, they are of the validation set, after `val`. Of other metrics logged there, the first two are
    shown.
    """
    kind = next((kind for kind in ("test", "val") if any(name.startswith(f"{kind}/") for name in metrics)), "test")
    measured = {name.removeprefix(f"{kind}/"): v for name, v in metrics.items() if name.startswith(f"{kind}/")}
    usual = (("loss", "{:.4f}"), ("accuracy", "{:.2%}"))
    parts = [form.format(measured.pop(name)) for name, form in usual if name in measured]
    parts += [f"{name} {value:.4f}" for name, value in list(measured.items())[:2]]
    lines = [f"train {metrics['train/loss']:.4f}"] if "train/loss" in metrics else []
    lines += [f"{kind} {'  '.join(parts)}"] if parts else []
    lines += [f"distance {metrics['global/distance']:.2e}"] if "global/distance" in metrics else []
    return "  ".join(lines)


class Watcher:
    """A watch function that shows the progress of successive runs (see `raylfl.run`).

    In a terminal it shows a bar; in a notebook one line, which it overwrites; elsewhere plain lines.
    """

    def __init__(self) -> None:
        self.console = console(markup=False)
        self._live: Progress | Status | None = None  # the display below the printed lines
        self._task: Any = None
        self._resumed = False  # whether the rounds before a checkpoint follow
        self._last_line = 0.0
        self._unprinted = ""  # the newest round's line, if it is not printed yet (without a terminal)
        self._latest: dict[str, Any] = {}
        self._overwrites = in_notebook()
        self._width = 0  # of the line that will be overwritten

    def __enter__(self) -> Watcher:
        self._wait("getting ready")  # imports, a trial batch, Ray and its workers
        return self

    def __exit__(self, *exception: object) -> None:
        self._print_line()
        self._end_line()
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __call__(self, progress: RunProgress) -> None:
        total = progress.experiment.config.top.rounds
        if self._resumed:  # the rounds before the checkpoint follow at once
            self._resumed, self._last_line = False, time.monotonic()
        for message in progress.messages:
            self.say(message)
        metrics = progress.metrics
        self._latest |= metrics  # evaluations are not in every row
        done, line = metrics["round"] + 1, status_line(self._latest)
        seconds = f"{metrics['time/round']:.3f} s/round"
        if isinstance(self._live, Progress):
            self._live.update(self._task, completed=done, status=line, seconds=seconds)
        else:
            self._unprinted = f"round {done}/{total}  {line}  {seconds}"
            if done == total or time.monotonic() - self._last_line >= PLAIN_SECONDS:
                self._print_line()
        if done == total:
            self._wait("finishing")

    def _print_line(self) -> None:
        if not self._unprinted:
            return
        if self._overwrites:
            sys.stdout.write("\r" + self._unprinted.ljust(self._width))
            sys.stdout.flush()
            self._width = len(self._unprinted)
        else:
            self.say(self._unprinted)
        self._unprinted, self._last_line = "", time.monotonic()

    def _end_line(self) -> None:
        if self._width:
            sys.stdout.write("\n")
            self._width = 0

    def prepare(self, address: str) -> None:
        """Prints that the run at this address is being prepared; a terminal shows a spinner instead."""
        if not (self.console.is_terminal or self._overwrites):
            self.say(f"getting ready: {address}")

    def start(self, experiment: Experiment, run_dir: Path, resumed: bool) -> None:
        """Shows a run before its first round."""
        self.__exit__()
        self._latest, self._resumed = {}, resumed
        name, total = experiment.config.resolved["algorithm"]["name"], experiment.config.top.rounds
        runtime = experiment.config.runtime
        processes = ", 1 process" if runtime.backend == "local" else ""  # a later line names Ray's workers
        self.say(f"{name}: {experiment.clients} clients, {total} rounds{processes} -> {shown(run_dir)}", wrap=False)
        if runtime.backend == "ray" and not self.console.is_terminal:
            count = runtime.workers
            self.say(f"waiting for {count or 'Ray and its'} worker{'s' * (count != 1)}")
        if self.console.is_terminal:
            self._live = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=16),
                MofNCompleteColumn(),
                TextColumn("{task.fields[status]}", markup=False),
                TextColumn("{task.fields[seconds]}", style="dim"),
                TimeRemainingColumn(compact=True, elapsed_when_finished=True),
                console=self.console,
            )
            self._task = self._live.add_task(visible(name), total=total, status="", seconds="")
            self._live.start()

    def say(self, text: str, wrap: bool = True) -> None:
        """Prints a line above the display; with date and time where neither a terminal nor a notebook shows it."""
        self._end_line()
        dated = not (self.console.is_terminal or self._overwrites)
        stamp = f"{datetime.now():%Y-%m-%d %H:%M:%S} " if dated else ""
        self.console.print(stamp + text, soft_wrap=not wrap or not self.console.is_terminal)

    def _wait(self, text: str) -> None:
        """Shows this text with a spinner until the next round ends; nothing without a terminal."""
        self.__exit__()
        if self.console.is_terminal:
            self._live = self.console.status(text)
            self._live.start()


def print_table(table: Table) -> None:
    """Prints a table as wide as the terminal; without a terminal, each row is one line of any length."""
    terminal = console(markup=False)
    if terminal.is_terminal:
        terminal.print(table)
        return
    text = io.StringIO()
    console(file=text, width=UNFOLDED, markup=False).print(table)
    print("\n".join(line.rstrip() for line in text.getvalue().splitlines()))


def print_cells(
    rows: Iterable[Sequence[str]], heads: Iterable[str], title: str | None = None, justify: JustifyMethod = "left"
) -> None:
    """Prints rows of texts as a table with these headings."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for head in heads:
        table.add_column(head, justify=justify, overflow="fold")
    for row in rows:
        table.add_row(*row)
    print_table(table)


def rows_table(rows: Sequence[dict[str, Any]]) -> None:
    """Prints dicts with equal keys as a table; a column that contains a fraction has three decimals."""
    columns = {name: _numbers([row[name] for row in rows]) for name in rows[0]}
    print_cells(zip(*columns.values(), strict=True), columns, justify="right")


def _numbers(values: Sequence[Any]) -> list[str]:
    fractions = any(isinstance(v, float) and not v.is_integer() for v in values)
    return [f"{v:.{3 if fractions else 0}f}" if isinstance(v, float) else str(v) for v in values]
