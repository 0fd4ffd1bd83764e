"""The pages `docs/results.md`, `docs/claims.md` and `docs/results/*.md`, generated from the ledger."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from papers.base import EXPERIMENTS, Claim
from papers.comparisons import page_name, rows_of_comparison, tables_of
from papers.ledger import ROWS, Row, folders, read, verdicts
from raylfl.report.render import to_markdown

HEAD = "<!-- written by `raylfl publish` from results/; changes by hand are lost -->\n"
SHORT = 10  # characters of a commit or digest in a table
WORDS = {True: "yes", False: "**no**", None: "open"}
VERDICTS = {True: "holds", False: "**does not hold**", None: "open"}
REFERENCES = (
    "Papers: [1] FOCUS (Ying, Li & Yang 2025), [2] SFL (Li & Lyu 2023), [3] FedACS (Weng, Ren, Xiao & Skoglund 2025), "
    "[4] FedAWARE (Zeng, Xu, Pan, Wang & Tang 2024)."
)


@dataclass(frozen=True)
class PublishedExperiment:
    """A published experiment, with its ledger's folder and rows."""

    name: str
    folder: Path
    rows: list[Row]
    claims: list[Claim]
    notes: list[str]

    @property
    def entry(self) -> Any:
        return EXPERIMENTS.get(self.name)

    @property
    def link(self) -> str:
        return f"[{self.name}](results/{page_name(self.name)})"

    @property
    def runs(self) -> str:
        """The number of runs that are published, and of the whole experiment."""
        made, total = len(self.rows), self.entry.cls().whole()
        return f"{made} / {made if total is None else total}" if made else "none needed"


def experiments(results: Path) -> list[PublishedExperiment]:
    """The experiments whose verdicts are published."""
    published = {e.name: results / e.name for e in EXPERIMENTS if (results / e.name / "verdicts.json").is_file()}
    return [PublishedExperiment(name, folder, read(folder), *verdicts(folder)) for name, folder in published.items()]


def pages(results: Path, docs: Path) -> dict[Path, str]:
    """Path -> text of each page, from the ledgers below `results`."""
    published = experiments(results)
    ledgers = {name: folder for name, folder in folders(results).items() if name not in EXPERIMENTS.names()}
    others = {name: rows_of_comparison(folder) for name, folder in ledgers.items()}
    texts = {docs / "results.md": gallery(published, others), docs / "claims.md": claims(published)}
    texts |= {docs / "results" / page_name(of.name): page(of) for of in published}
    return texts | {docs / "results" / page_name(name): comparison(name, rows) for name, rows in others.items()}


def write_pages(results: Path, docs: Path) -> list[Path]:
    """Write the pages whose text has changed, and return their paths."""
    texts = pages(results, docs)
    changed = [path for path in texts if not path.is_file() or path.read_text(encoding="utf-8") != texts[path]]
    for path in changed:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(texts[path], encoding="utf-8")
    return changed


def gallery(published: Sequence[PublishedExperiment], others: Iterable[str] = ()) -> str:
    """The text of `results.md`; others: the names of the comparisons."""
    rows = []
    for of in published:
        undecided = sum(claim.holds is None for claim in of.claims)
        held = f"{sum(claim.holds is True for claim in of.claims)} of {len(of.claims)}"
        held += f" ({undecided} open)" if undecided else ""
        hours = sum(row.seconds or 0.0 for row in of.rows) / 3600
        rows.append((of.link, of.entry.paper, of.runs, held, f"{hours:.2f}"))
    heads = ("experiment", "paper", "runs made / of the experiment", "claims that hold", "hours")
    lines = [HEAD, _head("results"), *_table(heads, rows, heads[2:]), "", REFERENCES, ""]
    lines += ["## Not run", "", "What the ledger lacks, computed from the experiments' settings and the ledger:", ""]
    lines += [f"- {of.name}: {line}" for of in published for line in of.entry.cls().missing(of.rows)]
    without = [f"{e.name} ({e.cls.time})" if e.cls.time else e.name for e in _unpublished(published)]
    lines += [f"- no run of the experiments {', '.join(without)}"] if without else []
    if links := [f"- [{name}](results/{page_name(name)})" for name in others]:
        lines += ["", "## Other comparisons", "", *links]
    for of in published:
        summary = f"{of.entry.summary}. [Figures, tables, runs](results/{page_name(of.name)})"
        lines += ["", f"## {of.name}", "", summary, "", *_claims(of)]
    return "\n".join(lines) + "\n"


def claims(published: Sequence[PublishedExperiment]) -> str:
    rows = [
        (of.entry.paper, of.link, claim.text, claim.published or "–", claim.ours, VERDICTS[claim.holds], of.runs)
        for of in published
        for claim in of.claims
    ]
    for e in _unpublished(published):
        rows.append((e.paper, e.name, e.summary, "–", "–", "no run", f"0 / {e.cls().whole() or '?'}"))
    table = _table(("paper", "experiment", "claim", "published", "ours", "verdict", "runs"), rows)
    lines = [HEAD, _head("claims"), '<div class="sortable" markdown>', "", *table, "", "</div>", "", REFERENCES]
    return "\n".join(lines) + "\n"


def _unpublished(published: Sequence[PublishedExperiment]) -> list[Any]:
    return [entry for entry in EXPERIMENTS if entry.name not in {of.name for of in published}]


def comparison(name: str, rows: Sequence[Row]) -> str:
    lines = [HEAD, f"# {name}", "", f"Runs published by `raylfl publish RUN ... --as {name}`."]
    tables, labels = tables_of(rows)
    for table in tables:
        lines += ["", table.caption, "", to_markdown(table).rstrip()]
    return "\n".join([*lines, "", "## Runs", "", *_runs(name, rows, labels)]) + "\n"


def page(of: PublishedExperiment) -> str:
    lines = [HEAD, f"# {of.name}", "", f"{of.entry.summary} ({of.entry.paper}).", "", *_claims(of)]
    for table in sorted(of.folder.glob("*.md")):
        lines += ["", table.read_text(encoding="utf-8").rstrip()]
    for picture in sorted(of.folder.glob("*.png")):
        lines += ["", f"![{of.name}: {picture.stem}](../../results/{of.name}/{picture.name})"]
    return "\n".join([*lines, "", "## Runs", "", *_runs(of.name, of.rows)]) + "\n"


def _claims(of: PublishedExperiment) -> list[str]:
    table = _table(("claim", "holds", "result"), [(c.text, WORDS[c.holds], c.result) for c in of.claims])
    return [*(table if of.claims else []), *([""] if of.notes else []), *(f"- {note}" for note in of.notes)]


def _runs(name: str, rows: Sequence[Row], labels: Sequence[str] = ()) -> list[str]:
    """The table of the runs, what is equal if one is repeated, and a command; labels: of the rows, not their cells."""
    if not rows:
        note = "None: figures and tables are computed without a run. The command that repeats them:"
        return [note, "", "```bash", f"raylfl reproduce {name}", "```"]
    lines = []
    for number, row in enumerate(rows):
        cell = ", ".join(value if key == "run" else f"{key} {value}" for key, value in row.cell.items())
        seconds = "–" if row.seconds is None else f"{row.seconds:.0f}"
        machine = f"{row.machine.get('cpu') or '?'}, {row.machine.get('cpus')} cores"
        bits = f"`{row.params_sha256[:SHORT]}`" if row.params_sha256 else "–"
        commits = [commit[:SHORT] for commit in (row.commit or "–", row.own_commit) if commit]
        origin = row.versions.get("torch", "–"), ", ".join(commits), bits
        lines.append((labels[number] if labels else cell, row.seed, f"`{row.digest}`", seconds, machine, *origin))
    heads, first = ("run", "seed", "config", "seconds", "machine", "torch", "commit", "sha256"), rows[0]
    numbers = "accuracies up to about one test image" if first.metric.endswith("accuracy") else "numbers up to rounding"
    section = [
        *_table(heads, lines, ("seed", "seconds")),
        "",
        "sha256 is that of the final parameters (`params_sha256` in the run's summary.json), – if the run diverged. "
        "A run that is repeated at the commit of its row, with the same torch on the same kind of machine, has the "
        f"same bits; at later commits it has the same {numbers}.",
    ]
    if any(row.own_commit for row in rows):
        section[-1] += " Of two commits, the first is raylfl's, and the second that of the code that is not raylfl's."
    if not first.command:
        return section
    note = "The command that repeats them"
    if "--only" in first.command:
        note = "The command that repeats the first run; `--only` selects each of the others in the same way"
    note += f" (results/{name}/{ROWS} has the `command` of every row):"
    checkout = [f"git checkout {first.commit[:SHORT]}"] if first.commit else []
    return [*section, "", note, "", "```bash", *checkout, first.command, "```"]


def _head(page: str) -> str:
    return (Path(__file__).parent / f"pages/{page}.md").read_text(encoding="utf-8")


def _table(heads: Sequence[str], rows: Iterable[Sequence[Any]], numeric: Sequence[str] = ()) -> list[str]:
    """The lines of a Markdown table; numeric: the headings of columns aligned to the right."""
    rule = ["--:" if head in numeric else "---" for head in heads]
    cells = ([str(value).replace("|", r"\|").replace("\n", " ") for value in row] for row in rows)
    return [f"| {' | '.join(row)} |" for row in (heads, rule, *cells)]
