"""Tables as data, and in every format."""

import ast
import csv
import io
import json
import math
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import raylfl
from raylfl.report import style
from raylfl.report.derived import Stat, counted_axes, facets
from raylfl.report.page import content_of, shown_tables, write_report
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
    link_table,
    rank,
    run_list,
    summary,
)
from tests.report.synthetic import groups_of, rows_of, write_run

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


def test_a_summary_without_a_target_has_no_costs(runs):
    table = summary(facets(group_runs(runs)), "test/accuracy", last=2, target=None)
    assert [column.key for column in table.columns] == ["setting", "seeds", "length", "last", "final", "best"]


@pytest.mark.parametrize(("last", "noted"), [(3, False), (4, True)])
def test_a_mean_over_more_rounds_than_there_are_is_said_to_be_over_all(runs, last, noted):
    caption = summary(facets(group_runs(runs)), "test/accuracy", last=last, target=None).caption
    assert ("No run has more than 3 rounds" in caption) == noted


def test_markdown_has_a_cell_for_every_column_and_the_best_in_bold(table):
    lines = to_markdown(table).splitlines()
    assert len({line.count("|") for line in lines}) == 1
    assert len(lines) == 2 + 2
    assert "**85.00 ± 7.07**" in lines[3]
    assert "47.50 ± 17.08" in lines[2]
    assert "**47.50" not in lines[2]


def test_latex_is_booktabs_with_specials_escaped_fits_the_page_and_names_its_packages(table):
    """Balanced groups and environments; a scaled box around the tabular, and wrapped texts where they are long."""
    text = to_latex(table)
    assert r"\toprule" in text
    assert r"\bottomrule" in text
    assert r"\textbf{85.00 $\pm$ 7.07}" in text
    assert r"(\%)" in text
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert {line.count("&") for line in rows} == {len(table.columns) - 1}

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


def test_latex_knows_each_character_of_the_reports():
    """pdfLaTeX refuses a table with any other. Tick labels (style.py) are in figures only."""
    for path in set((Path(raylfl.__file__).parent / "report").glob("*.py")) - {Path(style.__file__)}:
        nodes = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
        characters = {char for node in nodes if isinstance(node.value, str) for char in node.value}
        assert {char for char in characters if not latex(char).isascii()} == set(), path


def test_csv_keeps_the_numbers_unrounded_and_the_terminal_shows_the_texts(table):
    fedavg, focus = csv.DictReader(io.StringIO(to_csv(table)))
    assert float(fedavg["last_std"]) == np.std([0.3, 0.5, 0.4, 0.7], ddof=1)
    assert float(focus["last_mean"]) == pytest.approx(0.85, abs=1e-15)
    assert (fedavg["rounds_count"], fedavg["rounds_of"]) == ("2", "2")
    assert fedavg["setting"] == "FedAvg"
    console = Console(width=200, file=io.StringIO(), force_terminal=False)
    console.print(to_rich(table))
    assert "85.00 ± 7.07" in console.file.getvalue()
    assert "FOCUS" in console.file.getvalue()


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
    groups = groups_of(tmp_path, *((rows_of([0.1]), change) for change in changes))
    table = summary(facets(groups), "test/accuracy", last=1, target=None)
    assert "| *alpha=0.1* |" in to_markdown(table)
    assert r"\emph{alpha=0.5}" in to_latex(table)
    assert 'scope="rowgroup">alpha=0.1<' in to_html(table)
    assert to_csv(table).splitlines()[1].startswith("alpha=0.1,FedAvg,")


def test_the_best_tuning_of_every_method_is_tabled(tmp_path):
    data = {("fedavg", 0.1): 0.5, ("fedavg", 0.01): 0.7, ("focus", 0.1): 0.6, ("focus", 0.01): 0.3}
    runs = [(rows_of([value]), {"algorithm.name": m, "local.lr": lr}) for (m, lr), value in data.items()]
    table = best_settings(facets(groups_of(tmp_path, *runs)), "test/accuracy", 1)
    found = [(row["method"], row["tried"], row["local.lr"], row["last"].mean) for row in table.rows]
    assert found == [("FedAvg", 2, "0.01", 0.7), ("FOCUS", 2, "0.1", 0.6)]
    assert [column.head for column in table.columns] == ["method", "tried", "best lr", "test accuracy (%), last 1"]


def test_differences_and_the_common_rest_cover_the_config(runs):
    groups = group_runs(runs)
    different, shared = differences(groups), common(groups)
    names = ["setting", "algorithm.name", "algorithm.gamma", "algorithm.rule"]
    assert [column.key for column in different.columns] == names
    assert different.rows[1] == dict(zip(names, ("FOCUS", "focus", "none", "–"), strict=True))
    keys = {row["key"] for row in shared.rows} | {column.key for column in different.columns}
    assert keys == {"setting"} | {key for group in groups for key in group.setting}
    assert differences(groups[:1]) is None
    assert best_settings(facets(groups), "test/accuracy", 1) is None


def test_the_environment_is_what_the_summaries_say_without_results(runs):
    rows = {row["key"]: row["value"] for row in environment(runs).rows}
    versions = {"versions.raylfl": "0.1.0", "versions.torch": "2.13.0", "git_commit": "abc1234"}
    assert rows == {**versions, "host.cpus": "2", "host.memory_gib": "7.5"}
    assert environment([]) is None


def test_every_run_is_listed_with_its_state(tmp_path):
    write_run(tmp_path / "a" / "x", rows_of([0.1, 0.2]), {"rounds": 2})
    write_run(tmp_path / "b" / "y", rows_of([0.1]), {"rounds": 2, "seed": 1}, finished=False)
    groups = group_runs([load_run(tmp_path / "a/x"), load_run(tmp_path / "b/y")])
    first, second = run_list(groups).rows
    assert (first["run"], first["rounds"], first["state"]) == ("a/x", "2 of 2", "finished")
    assert (second["run"], second["rounds"], second["state"]) == ("b/y", "1 of 2", "unfinished")
    assert first["seconds"] == pytest.approx(0.2)


def test_a_diverged_run_is_called_diverged_in_tables_and_on_the_page(tmp_path, undrawn):
    write_run(tmp_path / "x", rows_of([0.1, 0.2]))
    write_run(tmp_path / "y", rows_of([0.3]), {"seed": 1}, finished=False)
    (write_run(tmp_path / "z", rows_of([0.9]), {"seed": 2}, finished=False) / "diverged.txt").touch()
    page = write_report(tmp_path, tmp_path / "report", pdf=False).read_text()
    assert "Diverged: 1 of 3 runs (z); they count as worse than any other." in page
    assert "Unfinished: 1 of 3 runs (y)" in page
    (row,) = csv.DictReader((tmp_path / "report/summary.csv").open())
    assert (row["seeds"], row["best_mean"]) == ("3 (1 diverged, 1 unfinished)", "inf")
    states = [row["state"] for row in csv.DictReader((tmp_path / "report/runs.csv").open())]
    assert states == ["finished", "unfinished", "diverged"]
    assert raylfl.runs(tmp_path)["diverged"].tolist() == [False, False, True]


@pytest.fixture
def folder(tmp_path):
    """A star, and a graph whose clients send to each other."""
    write_run(tmp_path / "star", rows_of([0.3, 0.5]))
    rows = rows_of([0.3, 0.5])
    for r, row in enumerate(rows, 1):
        row |= {"cost/uplink_floats": 0, "cost/downlink_floats": 0, "cost/peer_floats": 50 * r}
        row |= {"cost/busiest_node_floats": 20 * r, "cost/busiest_link_floats": 6 * r}
    path = write_run(tmp_path / "graph", rows, {"algorithm.name": "dsgd"})
    summary = json.loads((path / "summary.json").read_text())
    (path / "summary.json").write_text(json.dumps({**summary, "busiest_link": {"between": ["2", "5"], "floats": 11.0}}))
    return tmp_path


def groups(*paths):
    return group_runs([load_run(path) for path in paths])


def test_each_setting_has_its_floats_seconds_and_busiest_link(folder):
    graph, star = sorted(link_table(groups(folder / "star", folder / "graph")).rows, key=lambda row: row["setting"])
    assert graph == {"setting": "DSGD", "floats": 100, "seconds": 1.0, "node": 40, "link": "2 – 5", "carried": 11}
    assert star.keys() == {"setting", "floats", "seconds"}  # from before the others were recorded
    assert [table.name for table in shown_tables(content_of(folder))] == ["summary", "links"]


def test_the_busiest_link_is_a_cost_only_where_clients_send_to_each_other(folder):
    star, graph = load_run(folder / "star"), load_run(folder / "graph")
    assert "link" in counted_axes([star, graph])
    assert "link" not in counted_axes([star])
    assert link_table(groups(folder / "star")) is None


@pytest.mark.parametrize("damage", [None, 3, {"between": 4}, {"between": ["1", "2"], "floats": "many"}])
def test_a_damaged_summary_leaves_the_cells_empty(folder, damage):
    path = folder / "graph" / "summary.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "busiest_link": damage}))
    (row,) = link_table(groups(folder / "graph")).rows
    assert "link" not in row
    assert row["floats"] == 100
