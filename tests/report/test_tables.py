"""Tables as data, and in every format."""

import ast
import csv
import io
import math
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import raylfl
from raylfl.report.derived import Stat, facets
from raylfl.report.render import latex, template, to_csv, to_latex, to_markdown, to_rich
from raylfl.report.runs import group_runs, load_run
from raylfl.report.tables import (
    KEY_VALUE,
    Column,
    ReportTable,
    best_settings,
    common,
    differences,
    environment,
    rank,
    run_list,
    summary,
)
from tests.report.synthetic import rows_of, write_run

ACCURACY = {("fedavg", 0): [0.1, 0.3, 0.5], ("fedavg", 1): [0.1, 0.4, 0.7], ("focus", 0): [0.2, 0.8, 0.9]}


@pytest.fixture
def runs(tmp_path):
    return [
        load_run(write_run(tmp_path / f"{m}_{s}", rows_of(values), {"algorithm.name": m, "seed": s}))
        for (m, s), values in ACCURACY.items()
    ]


@pytest.fixture
def table(runs):
    return summary(facets(group_runs(runs)), "test/accuracy", last=2, target=0.5)


def test_the_summary_holds_the_figures_of_every_setting(table):
    fedavg, focus = table.rows
    pooled = [0.3, 0.5, 0.4, 0.7]
    assert (fedavg["setting"], fedavg["seeds"], fedavg["length"]) == ("FedAvg", "2", 3)
    assert fedavg["last"].mean == pytest.approx(np.mean(pooled))
    assert fedavg["last"].std == pytest.approx(np.std(pooled, ddof=1))
    assert fedavg["final"].mean == pytest.approx(0.6)
    assert (fedavg["rounds"].mean, fedavg["rounds"].count) == (3, 2)
    assert focus["floats"].mean == 4000
    assert focus["steps"].mean == 40
    assert focus["virtual"].mean == 1.0
    assert "computation" not in focus  # not counted


def test_a_summary_without_target_has_no_costs(runs):
    table = summary(facets(group_runs(runs)), "test/accuracy", last=2, target=None)
    assert [column.key for column in table.columns] == ["setting", "seeds", "length", "last", "final", "best"]


def test_markdown_has_a_cell_for_every_column_and_the_best_in_bold(table):
    lines = to_markdown(table).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert len(lines) == 2 + 2
    assert "**85.00 ± 7.07**" in lines[3]
    assert "47.50 ± 17.08" in lines[2]
    assert "**47.50" not in lines[2]


def test_latex_is_booktabs_with_specials_escaped(table):
    text = to_latex(table)
    assert r"\toprule" in text
    assert r"\bottomrule" in text
    assert r"\textbf{85.00 $\pm$ 7.07}" in text
    assert r"(\%)" in text
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.count("&") for line in rows} == {len(table.columns) - 1}


def test_latex_fits_the_page_and_names_its_packages(table):
    """Balanced groups and environments; a scaled box around the tabular, and wrapped texts where they are long."""
    text = to_latex(table)
    assert text.startswith("% needs \\usepackage{booktabs,graphicx}\n")
    assert r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%" in text
    plain = text.replace(r"\{", "").replace(r"\}", "")
    assert plain.count("{") == plain.count("}")
    assert text.count(r"\begin{") == text.count(r"\end{") == 2
    assert "p{0.7" not in text
    long = ReportTable("config", "Keys.", KEY_VALUE, [{"key": "a", "value": "x" * 61}, {"key": "b", "value": "y"}])
    assert r"\begin{tabular}{lp{0.7\linewidth}}" in to_latex(long)


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a_b & 5%", r"a\_b \& 5\%"),
        ("1.2e-12 ± 3e-13", r"$1.2\times10^{-12}$ $\pm$ $3\times10^{-13}$"),
        ("lr=1e-5", r"lr=$1\times10^{-5}$"),
        ("≥ 70\u202f%", r"$\geq$ 70\,\%"),
        (r"\x{}", r"\textbackslash{}x\{\}"),
    ],
)
def test_latex_text(text, escaped):
    assert latex(text) == escaped


@pytest.mark.parametrize("path", sorted((Path(raylfl.__file__).parent / "report").glob("*.py")), ids=lambda p: p.stem)
def test_latex_knows_each_character_of_the_reports(path):
    """pdfLaTeX refuses a table with any other. Tick labels (style.py) are in figures only."""
    nodes = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
    characters = {char for node in nodes if isinstance(node.value, str) for char in node.value}
    assert path.stem == "style" or {char for char in characters if not latex(char).isascii()} == set()


def test_csv_keeps_the_numbers_unrounded(table):
    fedavg, focus = csv.DictReader(io.StringIO(to_csv(table)))
    assert float(fedavg["last_std"]) == np.std([0.3, 0.5, 0.4, 0.7], ddof=1)
    assert float(focus["last_mean"]) == pytest.approx(0.85, abs=1e-15)
    assert (fedavg["rounds_count"], fedavg["rounds_of"]) == ("2", "2")
    assert fedavg["setting"] == "FedAvg"


def to_html(table: ReportTable) -> str:
    return str(vars(template().make_module())["table"](table))


def test_html_escapes_and_marks_the_best():
    data = ReportTable("t", "", [Column("a", "<a>"), Column("b", "b", better="min")], [])
    data.rows.extend([{"a": "x & <y>", "b": 2}, {"a": "z", "b": 1}])
    text = to_html(data)
    HTMLParser().feed(text)
    assert "&lt;a&gt;" in text
    assert "x &amp; &lt;y&gt;" in text
    assert "<b>1</b>" in text
    assert "<b>2</b>" not in text


def test_the_terminal_shows_the_same_texts(table):
    console = Console(width=200, file=io.StringIO(), force_terminal=False)
    console.print(to_rich(table))
    assert "85.00 ± 7.07" in console.file.getvalue()
    assert "FOCUS" in console.file.getvalue()


def test_rows_compete_within_their_block_and_only_if_all_seeds_reach_the_target():
    column = Column("c", "c", better="min")
    rows = [
        {"block": "one", "c": Stat(5, 0, 2, 2)},
        {"block": "one", "c": Stat(1, 0, 1, 2)},
        {"block": "two", "c": Stat(9, 0, 2, 2)},
        {"block": "two", "c": Stat.over([math.inf])},
    ]
    table = ReportTable("t", "", [column], rows)
    blocks = table.blocks()
    assert table.best_in(blocks["one"], column) == 5
    assert table.best_in(blocks["two"], column) == 9
    assert table.best_in(blocks["one"][:1], column) is None  # no rival
    assert math.isnan(rank("text"))


def test_blocks_are_set_apart_in_every_format(tmp_path):
    changes = [{"algorithm.name": m, "partition.alpha": a} for m in ("fedavg", "sfl") for a in (0.1, 0.5)]
    runs = [load_run(write_run(tmp_path / f"{i}", rows_of([0.1]), c)) for i, c in enumerate(changes)]
    table = summary(facets(group_runs(runs)), "test/accuracy", last=1, target=None)
    assert "| *alpha=0.1* |" in to_markdown(table)
    assert r"\emph{alpha=0.5}" in to_latex(table)
    assert 'scope="rowgroup">alpha=0.1<' in to_html(table)
    assert to_csv(table).splitlines()[1].startswith("alpha=0.1,FedAvg,")


def test_the_best_tuning_of_every_method_is_tabled(tmp_path):
    data = {("fedavg", 0.1): 0.5, ("fedavg", 0.01): 0.7, ("focus", 0.1): 0.6, ("focus", 0.01): 0.3}
    runs = []
    for index, ((method, lr), value) in enumerate(data.items()):
        changes = {"algorithm.name": method, "local.lr": lr}
        runs.append(load_run(write_run(tmp_path / str(index), rows_of([value]), changes)))
    table = best_settings(facets(group_runs(runs)), "test/accuracy", 1)
    found = [(row["method"], row["tried"], row["local.lr"], row["last"].mean) for row in table.rows]
    assert found == [("FedAvg", 2, "0.01", 0.7), ("FOCUS", 2, "0.1", 0.6)]
    assert [column.head for column in table.columns] == [
        "method",
        "tried",
        "best lr",
        "test accuracy (%), last 1",
    ]


def test_differences_and_the_common_rest_cover_the_config(runs):
    groups = group_runs(runs)
    different, shared = differences(groups), common(groups)
    assert [column.key for column in different.columns] == [
        "setting",
        "algorithm.name",
        "algorithm.gamma",
        "algorithm.rule",
    ]
    assert different.rows[1] == {
        "setting": "FOCUS",
        "algorithm.name": "focus",
        "algorithm.gamma": "none",
        "algorithm.rule": "–",
    }
    keys = {row["key"] for row in shared.rows} | {column.key for column in different.columns}
    assert keys == {"setting"} | {key for group in groups for key in group.setting}
    assert differences(groups[:1]) is None
    assert best_settings(facets(groups), "test/accuracy", 1) is None


def test_the_environment_is_what_the_summaries_say_without_results(runs):
    rows = {row["key"]: row["value"] for row in environment(runs).rows}
    assert rows["versions.torch"] == "2.13.0"
    assert rows["git_commit"] == "abc1234"
    assert rows["host.cpus"] == "2"
    assert rows["host.memory_gib"] == "7.5"
    assert set(rows) == {"versions.raylfl", "versions.torch", "git_commit", "host.cpus", "host.memory_gib"}
    assert environment([]) is None


def test_every_run_is_listed_with_its_state(tmp_path):
    write_run(tmp_path / "a" / "x", rows_of([0.1, 0.2]), {"rounds": 2})
    write_run(tmp_path / "b" / "y", rows_of([0.1]), {"rounds": 2, "seed": 1}, finished=False)
    groups = group_runs([load_run(tmp_path / "a/x"), load_run(tmp_path / "b/y")])
    first, second = run_list(groups).rows
    assert (first["run"], first["rounds"], first["state"]) == ("a/x", "2 of 2", "finished")
    assert (second["run"], second["rounds"], second["state"]) == ("b/y", "1 of 2", "unfinished")
    assert first["seconds"] == pytest.approx(0.2)
