"""The command `raylfl reproduce`: runs experiments by name, and prints and writes their findings."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table as RichTable

from papers.base import EXPERIMENTS, Findings, choice, find, place
from raylfl.python.console import console, say, shown
from raylfl.report.render import to_csv, to_markdown, to_rich
from raylfl.runtime.records.storage import Storage

VERDICTS = {True: "[green]yes[/]", False: "[bold red]NO[/]", None: "[yellow]?[/]"}  # rich markup
WIDTH = 160  # characters per line without a terminal, wide enough for every table
SMOKE_NOTE = (
    "smoke: the paper's code and config on the bundled digits, fewer rounds, clients and seeds; its levels are not "
    "comparable with the published ones, only the order"
)


def reproduce(
    names: Sequence[str],
    scale: str = "smoke",
    overrides: Sequence[str] = (),
    only: Sequence[str] = (),
    jobs: int | None = None,
    estimate: bool = False,
) -> None:
    """Carry out the experiments one by one; runs and findings are written to runs/reproduce/NAME[/SCALE].

    overrides: `key=value` for the config of every run. only: `key=value,value`, the cells to run. jobs: the number of
    runs at the same time; None: as many as there is room for. estimate: only estimate how long the runs take.
    """
    from papers.run_cache import RunCache, url_of

    experiments = {name: find(name) for name in names}
    choices = {name: choice(only, experiment.choices, name) for name, experiment in experiments.items()}
    for name, experiment in experiments.items():
        entry, folder = EXPERIMENTS.get(name), place(name, experiment, scale)
        say(f"{name}  {entry.paper}: {entry.summary}")
        options = (folder, scale, overrides, jobs, choices[name], place(experiment.shares or name, experiment, scale))
        if estimate:
            from papers.campaign import estimate_missing

            estimate_missing(experiment, options)
            continue
        findings = experiment.run(RunCache(*options))
        notes = [*findings.notes, *([SMOKE_NOTE] if experiment.scales and scale == "smoke" else [])]
        show(findings, notes)
        for path in write(folder, findings, notes):
            say(f"written  {shown(path)}")
        if (url := url_of(folder)) is not None:
            for path in filter(Path.is_file, folder.iterdir()):
                Storage(url).put(path, path.name)
            say(f"copied   {url}")


def show(findings: Findings, notes: Sequence[str]) -> None:
    out = console(width=None if sys.stdout.isatty() else WIDTH)
    for table in findings.tables:
        out.print(to_rich(table))
    if findings.claims:
        verdicts = RichTable(box=None, pad_edge=False, header_style="bold")
        verdicts.add_column("holds", justify="center")
        verdicts.add_column("claim")
        verdicts.add_column("result", style="dim")
        for claim in findings.claims:
            verdicts.add_row(VERDICTS[claim.holds], escape(claim.text), escape(claim.result))
        out.print(verdicts)
    for note in notes:
        out.print(f"note: {escape(note)}", soft_wrap=True)


def write(folder: Path, findings: Findings, notes: Sequence[str], dpi: int = 200) -> list[Path]:
    """Write tables, figures and verdicts.json; returns the paths of figures and verdicts."""
    folder.mkdir(parents=True, exist_ok=True)
    for table in findings.tables:
        (folder / f"{table.name}.md").write_text(f"{table.caption}\n\n{to_markdown(table)}", encoding="utf-8")
        (folder / f"{table.name}.csv").write_text(to_csv(table), encoding="utf-8")
    claims = [{key: value for key, value in vars(c).items() if key != "published" or value} for c in findings.claims]
    content = {"claims": claims, "notes": list(notes)}
    verdicts = folder / "verdicts.json"
    verdicts.write_text(json.dumps(content, indent=2, ensure_ascii=False, default=bool) + "\n", encoding="utf-8")
    for stem, figure in findings.figures.items():
        figure.savefig(folder / f"{stem}.png", dpi=dpi)
    return [*(folder / f"{stem}.png" for stem in findings.figures), verdicts]


def list_experiments() -> None:
    table = RichTable(box=None, show_header=False, pad_edge=False)
    for style in ("bold", "", "dim", "dim"):
        table.add_column(style=style, no_wrap=bool(style))
    for entry in EXPERIMENTS:
        table.add_row(entry.name, escape(entry.summary), entry.paper, ", ".join(entry.cls.scales) or "always whole")
    console(width=None if sys.stdout.isatty() else WIDTH, highlight=True).print(table)
