"""The terminal output at the end of a sweep: the table of settings, the report's path, the failed trials."""

from __future__ import annotations

from raylfl.errors import Say
from raylfl.python.console import rows_table, shown, working
from raylfl.report.labels import canonical, show_value
from raylfl.report.runs import is_run
from raylfl.runtime.records.mirror import copy_again
from raylfl.tune.spec import shown_choices
from raylfl.tune.sweep import SweepResult
from raylfl.tune.table import score_text

MOST = 20  # largest number of settings in the terminal; settings.csv has all


def finish(result: SweepResult, say: Say) -> int:
    """Writes the report and prints table, paths and failed trials; returns the exit code, 1 if a trial failed.

    say: called with one line for the user.
    """
    settings, score = result.settings, result.sweep.score
    columns = {key: [row.trial.values.get(key) for row in settings] for key in result.sweep.space.keys}
    keys = [key for key, values in columns.items() if len(set(map(canonical, values))) > 1]
    rows_table(
        [
            {
                "setting": f"{row.setting:03d}",
                **{key: "" if columns[key][k] is None else show_value(columns[key][k]) for key in keys},
                "seeds": f"{row.finished_runs}/{len(row.runs)}",
                "rounds": row.rounds,
                f"{score.metric}, {score.score}": score_text(row.score),
            }
            for k, row in enumerate(settings[:MOST])
        ]
    )
    if len(settings) > MOST:
        say(f"the best {MOST} of {len(settings)} settings: {shown(result.folder / 'settings.csv')} has all")
    if runs := [path for row in settings for run in row.runs if is_run(path := result.folder / run.id)]:
        from raylfl.report.page import write_report

        with working("drawing the report"):
            page = write_report(runs, result.folder / "report", **shown_choices(result.folder))
        say(f"report   {shown(page)}")
    say(f"sweep    {shown(result.folder)}")
    if (url := copy_again(result.folder)) is not None:
        say(f"copied   {url}")
    for trial, reason in result.failed.items():
        say(f"failed   {trial}: {reason.splitlines()[0] if reason else 'see the log.txt of its runs'}")
    if result.failed:
        say(f"again    raylfl sweep --resume {shown(result.folder)}")
    return int(bool(result.failed))
