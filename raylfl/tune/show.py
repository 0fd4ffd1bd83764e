"""The terminal output at the end of a sweep: the table of settings, the report's path, the failed trials."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from raylfl.errors import Say
from raylfl.python.console import print_table, shown, working
from raylfl.report.labels import canonical, flatten, show_value, tell_apart, varying
from raylfl.report.runs import is_run
from raylfl.runtime.records.mirror import copy_again
from raylfl.tune.spec import Sweep, shown_choices
from raylfl.tune.sweep import SweepResult
from raylfl.tune.table import SettingRow, score_text

MOST = 20  # largest number of settings in the terminal; settings.csv has all


def finish(result: SweepResult, say: Say) -> int:
    """Writes the report and prints table, paths and failed trials; returns the exit code, 1 if a trial failed.

    say: called with one line for the user.
    """
    print_table(terminal_table(result.sweep, result.settings))
    if len(result.settings) > MOST:
        say(f"the best {MOST} of {len(result.settings)} settings: {shown(result.folder / 'settings.csv')} has all")
    if any(is_run(path) for path in result.folder.iterdir()):
        from raylfl.report.page import write_report

        with working("drawing the report"):
            page = write_report([result.folder], result.folder / "report", **shown_choices(result.folder))
        say(f"report   {shown(page)}")
    say(f"sweep    {shown(result.folder)}")
    if (url := copy_again(result.folder)) is not None:
        say(f"copied   {url}")
    for trial, reason in result.failed.items():
        say(f"failed   {trial}: {reason.splitlines()[0] if reason else 'see the log.txt of its runs'}")
    if result.failed:
        say(f"again    raylfl sweep --resume {shown(result.folder)}")
    return int(bool(result.failed))


def terminal_table(sweep: Sweep, rows: Sequence[SettingRow]) -> Table:
    """The table of the best MOST settings, with the keys of the space in which settings differ.

    rows: the settings of the last stage, the best first.
    """
    texts = {key: value_texts(key, [row.trial.values.get(key) for row in rows]) for key in sweep.space.keys}
    keys = [key for key, column in texts.items() if len(set(column)) > 1]
    table = Table(box=None, pad_edge=False)
    table.add_column("setting")
    for name in (*keys, "seeds", "rounds", f"{sweep.score.metric}, {meaning(sweep)}"):
        table.add_column(name, justify="right")
    for k, row in enumerate(rows[:MOST]):
        table.add_row(
            f"{row.setting:03d}",
            *(texts[key][k] for key in keys),
            f"{row.finished_runs}/{len(row.runs)}",
            str(row.rounds),
            score_text(row.score),
        )
    return table


def value_texts(key: str, values: Sequence[Any]) -> list[str]:
    """The values of a key of the space as short texts, one for each value.

    If the key is a whole config group, a text is the group's name with the options in which the values differ.

    >>> value_texts("partition", [{"name": "iid"}, {"name": "shards", "shards": 2}, {"name": "shards", "shards": 3}])
    ['iid', 'shards, shards=2', 'shards, shards=3']
    """
    if not any(isinstance(value, Mapping) for value in values):
        return ["" if value is None else show_value(value) for value in values]
    flats = {canonical(v): flatten({key: {"name": v} if isinstance(v, str) else v}) for v in values}
    different = list(flats.values())
    texts = tell_apart(different, varying(different), {name for flat in different for name in flat})
    short = {value: text.removeprefix(f"{key}=") for value, text in zip(flats, texts, strict=True)}
    return [short[canonical(value)] for value in values]


def meaning(sweep: Sweep) -> str:
    """A description of the sweep's score: `mean of the last 4 rounds`, `best`, `rounds to 0.9`."""
    if sweep.score.score == "target":
        return f"rounds to {sweep.score.target:g}"
    last = sweep.score.window(sweep.stages[-1].rounds)
    if sweep.score.score == "best":
        return "best"
    return f"mean of the last {last} rounds" if last > 1 else "in the last round"
