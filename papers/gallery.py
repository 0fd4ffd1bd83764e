"""The pages `docs/results.md`, `docs/claims.md` and `docs/results/*.md`, generated from the ledger of published runs.

docs/results.md lists all published experiments and comparisons, each of which has a page of its own; docs/claims.md has
all claims in one table, which can be sorted on the site.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from papers.base import EXPERIMENTS, Claim
from papers.comparisons import labels_of, page_name, rows_of_comparison, tables_of
from papers.ledger import ROWS, Row, folders, read
from raylfl.report.render import to_markdown

HEAD = "<!-- written by `raylfl publish` from results/; changes by hand are lost -->\n"
SHORT = 10  # characters of a commit or digest in a table
WORDS = {True: "yes", False: "**no**", None: "open"}
VERDICTS = {True: "holds", False: "**does not hold**", None: "open"}
REFERENCES = (
    "Papers: [1] FOCUS (Ying, Li & Yang 2025), [2] SFL (Li & Lyu 2023), [3] FedACS (Weng, Ren, Xiao & Skoglund 2025), "
    "[4] FedAWARE (Zeng, Xu, Pan, Wang & Tang 2024)."
)
INTRO = """# Results

The papers' claims, our results, and whether the two agree. *open* means that the runs so far do not decide the claim.
Every number comes from runs in the ledger (`results/`); the page of an experiment lists its runs and the command that
repeats them. Figures of partitions and of theory need no runs.
[Reproducing the papers](reproduce.md) explains how the numbers are obtained; [Findings](findings.md) lists differences
from the papers and their causes.
"""


CLAIMS = """# Claims

Every claim of the papers that the ledger judges, and the experiments without a run. On the site a click on a heading
sorts the table. *Published* has the paper's number, where the claim has one; *ours* the numbers that decide it;
[Reproducing the papers](reproduce.md) explains them.
"""


@dataclass(frozen=True)
class PublishedExperiment:
    """A published experiment: the folder of its ledger, the ledger's rows (none without runs), verdicts and notes."""

    name: str
    folder: Path
    rows: list[Row]
    claims: list[dict[str, Any]]
    notes: list[str]

    @property
    def page(self) -> str:
        return page_name(self.name)

    @property
    def experiment(self) -> Any:
        return EXPERIMENTS.get(self.name)

    @property
    def link(self) -> str:
        return f"[{self.name}](results/{self.page})"

    @property
    def runs(self) -> str:
        """The number of runs that are published, and of the whole experiment."""
        made, total = len(self.rows), self.experiment.cls().whole()
        return f"{made} / {made if total is None else total}" if made else "none needed"


def experiments(results: Path) -> list[PublishedExperiment]:
    """The experiments whose verdicts are published, sorted by name.

    results: the folder of all ledgers.
    """
    entries = []
    for entry in EXPERIMENTS:
        folder = results / entry.name
        if (folder / "verdicts.json").is_file():
            verdicts = json.loads((folder / "verdicts.json").read_text(encoding="utf-8"))
            entries.append(PublishedExperiment(entry.name, folder, read(folder), verdicts["claims"], verdicts["notes"]))
    return entries


def pages(results: Path, docs: Path) -> dict[Path, str]:
    """Path -> text of each page, from the ledgers below `results`."""
    entries = experiments(results)
    ledgers = {name: folder for name, folder in folders(results).items() if name not in EXPERIMENTS.names()}
    others = {name: rows_of_comparison(folder) for name, folder in ledgers.items()}
    texts = {docs / "results.md": gallery(entries, others), docs / "claims.md": claims(entries)}
    texts |= {docs / "results" / entry.page: page(entry) for entry in entries}
    return texts | {docs / "results" / page_name(name): comparison(name, rows) for name, rows in others.items()}


def write_pages(results: Path, docs: Path) -> list[Path]:
    """Write the pages whose text has changed, and return their paths.

    results: the folder of all ledgers; docs: the folder of the documentation.
    """
    changed = []
    for path, text in pages(results, docs).items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed


def gallery(entries: Sequence[PublishedExperiment], others: Iterable[str] = ()) -> str:
    """The text of `results.md`: a table of the experiments, the claims of each, and the names of the comparisons."""
    lines = [
        HEAD,
        INTRO,
        "| experiment | paper | runs made / of the experiment | claims that hold | hours |",
        "| --- | --- | --: | --: | --: |",
    ]
    for entry in entries:
        holding = sum(claim["holds"] is True for claim in entry.claims)
        undecided = sum(claim["holds"] is None for claim in entry.claims)
        held = f"{holding} of {len(entry.claims)}" + (f" ({undecided} open)" if undecided else "")
        hours = sum(row.seconds or 0.0 for row in entry.rows) / 3600
        lines.append(f"| {entry.link} | {entry.experiment.paper} | {entry.runs} | {held} | {hours:.2f} |")
    lines += ["", REFERENCES, "", *not_run(entries)]
    if links := [f"- [{name}](results/{page_name(name)})" for name in others]:
        lines += ["", "## Other comparisons", "", *links]
    for entry in entries:
        lines += [
            "",
            f"## {entry.name}",
            "",
            f"{entry.experiment.summary}. [Figures, tables, runs](results/{entry.page})",
            "",
        ]
        lines += [*_claims(entry.claims), *_notes(entry.notes)]
    return "\n".join(lines) + "\n"


def claims(entries: Sequence[PublishedExperiment]) -> str:
    """The text of `claims.md`: one table of all claims, and of the experiments without a run."""
    head = ("paper", "experiment", "claim", "published", "ours", "verdict", "runs")
    rows = []
    for entry in entries:
        for claim in (Claim(**content) for content in entry.claims):
            numbers = claim.published or "–", claim.ours, VERDICTS[claim.holds]
            rows.append((entry.experiment.paper, entry.link, claim.text, *numbers, entry.runs))
    names = {entry.name for entry in entries}
    for other in (entry for entry in EXPERIMENTS if entry.name not in names):
        missing = f"0 / {other.cls().whole() or '?'}"
        rows.append((other.paper, other.name, other.summary, "–", "–", "no run", missing))
    lines = [f"| {' | '.join(map(_cell, row))} |" for row in (head, ["---"] * len(head), *rows)]
    return "\n".join([HEAD, CLAIMS, '<div class="sortable" markdown>', "", *lines, "", "</div>", "", REFERENCES]) + "\n"


def comparison(name: str, rows: Sequence[Row]) -> str:
    """The text of the page of a comparison: its tables, and all runs."""
    lines = [HEAD, f"# {name}", "", f"Runs published by `raylfl publish RUN ... --as {name}`."]
    for table in tables_of(rows):
        lines += ["", table.caption, "", to_markdown(table).rstrip()]
    return "\n".join([*lines, "", "## Runs", "", *_runs(name, rows, labels_of(rows))]) + "\n"


def not_run(entries: Sequence[PublishedExperiment]) -> list[str]:
    """The section on what the ledger lacks: parts of the published experiments, and experiments without a run."""
    lines = ["## Not run", "", "What the ledger lacks, computed from the experiments' settings and the ledger:", ""]
    for entry in entries:
        lines += [f"- {entry.name}: {line}" for line in entry.experiment.cls().missing(entry.rows)]
    names = {entry.name for entry in entries}
    others = [entry for entry in EXPERIMENTS if entry.name not in names]
    if others:
        times = [f"{entry.name} ({entry.cls.time})" if entry.cls.time else entry.name for entry in others]
        lines.append(f"- no run of the experiments {', '.join(times)}")
    return lines


def page(entry: PublishedExperiment) -> str:
    """The text of an experiment's page: claims, tables, figures, and all runs with a command that repeats one."""
    lines = [
        HEAD,
        f"# {entry.name}",
        "",
        f"{entry.experiment.summary} ({entry.experiment.paper}).",
        "",
        *_claims(entry.claims),
    ]
    lines += _notes(entry.notes)
    for table in sorted(entry.folder.glob("*.md")):
        lines += ["", table.read_text(encoding="utf-8").rstrip()]
    for picture in sorted(entry.folder.glob("*.png")):
        lines += ["", f"![{entry.name}: {picture.stem}](../../results/{entry.name}/{picture.name})"]
    lines += ["", "## Runs", "", *_runs(entry.name, entry.rows)]
    return "\n".join(lines) + "\n"


def _claims(claims: Sequence[dict[str, Any]]) -> list[str]:
    lines = ["| claim | holds | result |", "| --- | --- | --- |"]
    for claim in claims:
        lines.append(f"| {_cell(claim['text'])} | {WORDS[claim['holds']]} | {_cell(Claim(**claim).result)} |")
    return lines if claims else []


def _notes(notes: Sequence[str]) -> list[str]:
    return ["", *(f"- {note}" for note in notes)] if notes else []


def _runs(name: str, rows: Sequence[Row], labels: Sequence[str] = ()) -> list[str]:
    """The section of the runs; labels: of the rows, in place of their cells."""
    if not rows:
        note = "None: figures and tables are computed without a run. The command that repeats them:"
        return [note, "", "```bash", f"raylfl reproduce {name}", "```"]
    lines = [
        "| run | seed | config | seconds | machine | torch | commit | sha256 |",
        "| --- | --: | --- | --: | --- | --- | --- | --- |",
    ]
    texts = labels or [
        ", ".join(value if key == "run" else f"{key} {value}" for key, value in row.cell.items()) for row in rows
    ]
    for row, cell in zip(rows, texts, strict=True):
        seconds = "–" if row.seconds is None else f"{row.seconds:.0f}"
        machine = f"{row.machine.get('cpu') or '?'}, {row.machine.get('cpus')} cores"
        commit = (row.commit or "–")[:SHORT]
        torch = row.versions.get("torch", "–")
        bits = f"`{row.params_sha256[:SHORT]}`" if row.params_sha256 else "–"
        facts = [_cell(cell), row.seed, f"`{row.digest}`", seconds, machine, torch, commit, bits]
        lines.append(f"| {' | '.join(map(str, facts))} |")
    return [*lines, "", *_repeating(name, rows[0])]


def _repeating(name: str, first: Row) -> list[str]:
    """The lines of a page on repeating a run: what will be equal, and the command of `first`, the table's first row."""
    numbers = "accuracies up to about one test image" if first.metric.endswith("accuracy") else "numbers up to rounding"
    lines = [
        "sha256 is that of the final parameters (`params_sha256` in the run's summary.json), – if the run diverged. "
        "A run that is repeated at the commit of its row, with the same torch on the same kind of machine, has the "
        f"same bits; at later commits it has the same {numbers}."
    ]
    if not first.command:
        return lines
    note = "The command that repeats them"
    if "--only" in first.command:
        note = "The command that repeats the first run; `--only` selects each of the others in the same way"
    note += f" (results/{name}/{ROWS} has the `command` of every row):"
    checkout = [f"git checkout {first.commit[:SHORT]}"] if first.commit else []
    return [*lines, "", note, "", "```bash", *checkout, first.command, "```"]


def _cell(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")
