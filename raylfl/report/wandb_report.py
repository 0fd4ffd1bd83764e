"""`raylfl report --wandb ENTITY/PROJECT`: saves a report at wandb, with panels grouped by algorithm.

The runs must be at wandb already (`wandb sync` uploads offline runs); their wandb group is the name of the experiment
or sweep. Building the report needs the package wandb-workspaces but no connection; saving it needs a login.
"""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raylfl.components.extras import require
from raylfl.errors import BadValue, RaylflError, headline
from raylfl.report.labels import METHOD, varying
from raylfl.report.page import Content, content_of
from raylfl.report.render import to_markdown
from raylfl.report.runs import RunRecord
from raylfl.report.wording import axis_name, metric_name
from raylfl.runtime.records.wandb_run import base_url, logged_in, unreachable

SECTIONS = {  # heading of a section -> prefixes of the names of its metrics
    "Test set": ("test/",),
    "Training": ("train/", "global/", "average/"),
    "Clients": ("clients/", "nodes/", "participants/", "random/", "cohort/", "update/", "inconsistency/"),
    "Costs": ("cost/", "time/", "traffic/"),
    "Algorithm": ("algo/",),
}
MOST_COLUMNS = 8  # largest number of columns of parallel coordinates


def shared_keys(runs: Sequence[RunRecord]) -> list[str]:
    """The config keys (with dots) that all runs have and that differ between runs, except the algorithm's name."""
    settings = [run.setting for run in runs]
    return [key for key in varying(settings) if key != METHOD and all(key in setting for setting in settings)]


def sections(runs: Sequence[RunRecord]) -> dict[str, list[str]]:
    """All measured metrics by section: heading -> names; metrics of no section in SECTIONS are under `More`."""
    measured = dict.fromkeys(name for run in runs for name in run.metrics if run.measured(name))
    found: dict[str, list[str]] = {}
    for name in measured:
        heading = next((h for h, begins in SECTIONS.items() if name.startswith(begins)), "More")
        found.setdefault(heading, []).append(name)
    return {heading: found[heading] for heading in (*SECTIONS, "More") if heading in found}


def build(content: Content, entity: str, project: str) -> Any:
    """An unsaved wandb Report object. Raises BadConfig if the package wandb-workspaces is missing."""
    require("wandb_workspaces", what="--wandb")
    wr = importlib.import_module("wandb_workspaces.reports.v2")

    metric = content.look.metric
    names = ", ".join(f"'{name}'" for name in content.names)

    def runs(*groupby: str) -> Any:  # without entity and project, so that wandb makes no request
        return wr.Runset(name="runs", filters=f"Group in [{names}]", groupby=list(groupby))

    summary = to_markdown(content.summary(content.parts))
    blocks: list[Any] = [wr.TableOfContents(), wr.H1("Summary"), wr.MarkdownBlock(summary)]
    for heading, metrics in sections(content.runs).items():
        panels = [line(wr, name) for name in metrics]
        blocks += [wr.H1(heading), wr.PanelGrid(runsets=[runs(f"config.{METHOD}")], panels=panels)]
    if differ := shared_keys(content.runs)[: MOST_COLUMNS - 2]:
        keys = [wr.Config(METHOD), *(wr.Config(key) for key in differ), wr.SummaryMetric(metric)]
        columns = [wr.ParallelCoordinatesPlotColumn(key) for key in keys]
        panels = [wr.ParallelCoordinatesPlot(columns=columns), wr.RunComparer(diff_only="split")]
        blocks += [wr.H1("Settings"), wr.PanelGrid(runsets=[runs()], panels=panels)]
    text = f"{metric_name(metric).capitalize()} and the rest, seeds pooled, by algorithm."
    return wr.Report(entity=entity, project=project, title=content.title[:128], description=text, blocks=blocks)


def line(wr: Any, metric: str) -> Any:
    """A wandb panel of one metric over rounds: for each algorithm a line with the mean and range of its runs."""
    return wr.LinePlot(
        title=axis_name(metric),
        x="round",
        y=[metric],
        title_x="round",
        log_y=True if metric.startswith(("global/distance", "average/distance")) else None,
        groupby=wr.Config(METHOD),
        groupby_aggfunc="mean",
        groupby_rangefunc="minmax",
    )


def publish(paths: Sequence[Path], target: str) -> str:
    """Builds the report on these runs and saves it at wandb; returns its URL.

    target: ENTITY/PROJECT. Raises BadValue for another form, and RaylflError without a login or if saving fails.
    """
    entity, slash, project = target.partition("/")
    if not (entity and slash and project) or "/" in project:
        raise BadValue("--wandb", got=target, need="ENTITY/PROJECT")
    report = build(content_of(paths), entity, project)
    url = base_url()
    if not logged_in():  # otherwise wandb would prompt for a login
        raise RaylflError(f"not logged in at {url}: `wandb login`, or set WANDB_API_KEY")
    if reason := unreachable(url):
        raise RaylflError(f"{url} does not answer ({reason}): the report is not saved")
    try:
        report.save()
    except Exception as error:
        first = headline(error)
        raise RaylflError(
            f"wandb did not take the report ({first}): is {target} yours to write to? "
            "Runs that were logged offline must be there: `wandb sync` sends them"
        ) from error
    return str(report.url)
