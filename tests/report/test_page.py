"""The page is well-formed, self-contained and complete for runs of any kind."""

import csv
import io
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from raylfl.cli import main
from raylfl.errors import BadValue
from raylfl.report.page import content_of, shown_tables, write_report
from raylfl.report.style import Drawing
from tests.report.synthetic import rows_of, write_run
from tests.undrawn import savefig

VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """Checks that tags are balanced; collects ids, links, sources and text."""

    def __init__(self, path: Path):
        super().__init__()
        self.open, self.ids, self.links, self.sources, self.text, self.tags = [], [], [], [], [], []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        for key, value in attrs:
            target = {"id": self.ids, "href": self.links, "src": self.sources}.get(key)
            if target is not None:
                target.append(value)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)

    @property
    def words(self):
        return " ".join(" ".join(self.text).split())


def curve(seed, top, rounds=30):
    rng = np.random.default_rng(seed)
    return (top * (1 - np.exp(-np.arange(rounds) / 6)) + 0.02 * rng.random(rounds)).tolist()


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Two methods x two seeds, one of them unfinished; the page, its runs' accuracies."""
    folder = tmp_path_factory.mktemp("comparison")
    accuracy = {}
    for method, top in (("fedavg", 0.6), ("focus", 0.8)):
        for seed in range(2):
            values = accuracy[method, seed] = curve(seed, top)
            changes = {"algorithm.name": method, "seed": seed, "name": "two <methods> & more"}
            finished = (method, seed) != ("focus", 1)
            write_run(folder / "runs" / f"{method}_{seed}", rows_of(values), changes, finished)
    path = write_report(folder / "runs", folder / "out", target=0.5, last=5)
    return path, accuracy


def test_the_page_is_well_formed_and_its_ids_are_unique(comparison):
    page = Page(comparison[0])
    assert len(page.ids) == len(set(page.ids))
    assert page.tags.count("h1") == 1
    assert page.tags.count("svg") == 3


def test_the_page_needs_no_network_and_links_only_to_files_beside_it(comparison):
    path = comparison[0]
    text, page = path.read_text(encoding="utf-8"), Page(path)
    assert "http" not in text
    assert "//" not in text.replace("base64,", "").split("<body>")[0]
    assert "@import" not in text
    assert all(source.startswith("data:image/png;base64,") for source in page.sources)
    for link in page.links:
        assert link[1:] in page.ids if link.startswith("#") else (path.parent / link).is_file(), link


def test_the_page_says_the_numbers_and_names_an_unfinished_run(comparison):
    path, accuracy = comparison
    words = Page(path).words
    for method in ("fedavg", "focus"):
        pooled = [value for seed in range(2) for value in accuracy[method, seed][-5:]]
        assert f"{100 * np.mean(pooled):.2f} ± {100 * np.std(pooled, ddof=1):.2f}" in words
        best = [max(accuracy[method, seed]) for seed in range(2)]
        assert f"{100 * np.mean(best):.2f} ± {100 * np.std(best, ddof=1):.2f}" in words
    assert "test accuracy ≥ 50" in words
    assert "two <methods> & more" in words
    assert "Unfinished: 1 of 4 runs (focus_1)" in Page(comparison[0]).words


def test_figures_and_tables_lie_beside_the_page(comparison):
    folder = comparison[0].parent
    for name in ("report", "convergence", "costs", "diagnostics", "partition", "participation"):
        assert (folder / f"{name}.png").read_bytes()[:4] == b"\x89PNG"
    assert (folder / "convergence.pdf").read_bytes()[:4] == b"%PDF"
    for name in ("summary", "differences", "config", "environment", "runs"):
        assert all((folder / f"{name}.{ending}").stat().st_size for ending in ("csv", "md", "tex"))
    rows = list(csv.DictReader((folder / "summary.csv").open()))
    assert [row["setting"] for row in rows] == ["FedAvg", "FOCUS"]


def test_a_single_run_of_a_single_round_makes_the_same_page_every_time(tmp_path, monkeypatch):
    drawn = Drawing.savefig

    def curves_only(self, place, **options):
        return (drawn if isinstance(place, io.StringIO) else savefig)(self, place, **options)

    monkeypatch.setattr(Drawing, "savefig", curves_only)  # which are in the text of the page
    write_run(tmp_path / "run", rows_of([0.3]), {"rounds": 1})
    path, again = (write_report(tmp_path / "run", tmp_path / name, pdf=False) for name in ("out", "again"))
    assert "30.00" in Page(path).words
    assert again.read_text() == path.read_text()
    assert (tmp_path / "out/report.png").is_file()


def test_a_run_that_has_not_finished_a_round_makes_a_page(tmp_path, undrawn):
    write_run(tmp_path / "run", [], finished=False)
    page = Page(write_report(tmp_path / "run", tmp_path / "out", pdf=False))
    assert "No run has finished a round yet." in page.words


def test_a_synthetic_problem_is_reported_by_its_distance(tmp_path, undrawn):
    write_run(tmp_path / "run", rows_of(distance=[10.0**-r for r in range(15)]))
    page = Page(write_report(tmp_path / "run", tmp_path / "out", target=1e-6, pdf=False))
    assert "relative distance to optimum ≤ 1e-6" in page.words
    rows = list(csv.DictReader((tmp_path / "out/summary.csv").open()))
    assert float(rows[0]["rounds_mean"]) == 7


def test_the_report_of_a_sweep_has_figures_of_tuning_and_heterogeneity(tmp_path, undrawn):
    for index, (alpha, method, lr) in enumerate(
        (a, m, lr) for a in (0.1, 1.0) for m in ("fedavg", "focus") for lr in (0.01, 0.1)
    ):
        top = 0.5 + 0.2 * alpha + 0.1 * (method == "focus") - 0.3 * (lr == 0.01)
        changes = {"partition.alpha": alpha, "algorithm.name": method, "local.lr": lr}
        write_run(tmp_path / "sweep" / str(index), rows_of(curve(index, top, 8)), changes)
    path = write_report([tmp_path / "sweep"], tmp_path / "out", pdf=False)
    page = Page(path)
    assert {"summary", "curves", "tuning", "heterogeneity", "clients", "setup"} <= set(page.ids)
    names = {file.name for file in path.parent.glob("*.png")}
    assert {"profile_local.lr.png", "convergence_alpha-0.1.png", "partition_2.png"} <= names
    best = {(row["block"], row["method"]): row["local.lr"] for row in _rows(path.parent / "best_settings.csv")}
    assert best == {(f"alpha={a}", m): "0.1" for a in ("0.1", "1") for m in ("FedAvg", "FOCUS")}


def _rows(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_the_terminal_gets_the_summary_of_all_settings(comparison):
    table, pairs = shown_tables(content_of(comparison[0].parent.parent / "runs", target=0.5, last=5))
    assert [row["setting"] for row in table.rows] == ["FedAvg", "FOCUS"]
    assert [row["pair"] for row in pairs.rows] == ["FOCUS − FedAvg"]
    assert "Paired differences" in comparison[0].read_text()


@pytest.mark.parametrize(("key", "value"), [("metric", "x"), ("last", -1), ("target", 95)])
def test_impossible_options_are_refused_by_name(tmp_path, key, value):
    write_run(tmp_path / "run", rows_of([0.3]))
    with pytest.raises(BadValue, match=f"^{key}="):
        write_report(tmp_path / "run", tmp_path / "out", **{key: value})
    assert not (tmp_path / "out").exists()


def test_the_columns_of_the_summary_table_can_be_chosen(tmp_path, capsys, undrawn):
    folder = write_run(tmp_path / "a", rows_of(np.linspace(0.1, 0.9, 20).tolist()), {"algorithm.name": "focus"})
    assert main(["report", str(folder), "-o", str(tmp_path / "page"), "--columns", "last,setting"]) == 0
    head = (tmp_path / "page/summary.md").read_text().splitlines()[0]
    assert [cell.strip() for cell in head.strip("|").split("|")] == ["test accuracy (%), last 2", "setting"]
    assert capsys.readouterr().out.splitlines()[0].split()[-1] == "setting"
    assert (tmp_path / "page/report.png").is_file()  # its own small table has all of its columns
    assert main(["report", str(folder), "-o", str(tmp_path / "page"), "--columns", "lasst,setting"]) == 2
    assert "columns=lasst,setting, but must be some of setting, seeds, length, last" in capsys.readouterr().err
