"""Damaged run directories and hostile texts: the damage is named, and the other runs are reported."""

import csv
import json
import math
import random
from itertools import product

import numpy as np
import pytest
import yaml
from matplotlib.text import Text

from raylfl.cli import main
from raylfl.errors import BadConfig
from raylfl.report import tables
from raylfl.report.curves import Curve, draw
from raylfl.report.derived import facets, main_metric
from raylfl.report.page import write_report
from raylfl.report.partition_plot import figure as partition_figure
from raylfl.report.pictures import participation_pictures, partition_pictures
from raylfl.report.render import FORMATS, csv_text, to_csv
from raylfl.report.runs import group_runs, load_run, read_runs
from raylfl.report.style import Drawing, LineStyle, rc
from tests.report.synthetic import rows_of, write_run
from tests.report.test_page import Page
from tests.shares import one_in

DEEP, LONG = "[" * 100_000, "9" * 5000
CONFIGS = {  # a config.yaml that cannot be one, and the word that says why
    "list": (b"- 1\n- 2\n", "must be a mapping"),
    "no_yaml": (b"{a: 1", "expected"),
    "bytes": (b"a: \xff\xfe", "codec"),
    "nested": (f"a: {DEEP}".encode(), "nested"),
    "digits": (f"seed: {LONG}".encode(), "digits"),
    "clients_as_text": (b"num_clients: many\n", "num_clients='many'"),
    "endless_clients": (b"num_clients: 1000000000000000000\n", "num_clients"),
    "rounds_as_text": (b"rounds: [1]\n", "rounds=[1]"),
}
GOOD = {"round": 0, "cohort": [0, 1], "draws": [1, 1], "received": [True, False], "steps": [5, 5]}
PARTICIPATION = [
    {"round": 0, "draws": [1], "received": [True]},
    GOOD | {"cohort": 3},
    GOOD | {"cohort": [0, 999]},
    GOOD | {"cohort": [0, -1]},
    GOOD | {"cohort": [0, 10**30]},
    GOOD | {"draws": [1]},
    GOOD | {"received": ["yes", "no"]},
    [1, 2],
]
COUNTS = [
    '{"counts": [[1, 2], [3]], "classes": ["a", "b"]}',
    '{"counts": "x", "classes": []}',
    '{"counts": [[1]]}',
    DEEP,
]
LINES = [
    f'{{"round": {10**30}, "test/accuracy": 1}}',
    f'{{"round": {LONG}}}',
    DEEP,
    "3",
    '{"round": "one"}',
    '{"a": 1}',
]

FILES = ("config.yaml", "metrics.jsonl", "participation.jsonl", "partition_counts.json", "summary.json")
NOISE = (b"\xff\x00", b"[" * 300, b"9" * 400, b"-", b'"', b"{", b"null", b"1e999")


def damaged_runs(folder):
    """One run for each kind of damage, and an intact run."""
    for name, (content, _) in CONFIGS.items():
        (write_run(folder / name, rows_of([0.3])) / "config.yaml").write_bytes(content)
    for k, row in enumerate(PARTICIPATION):
        path = write_run(folder / f"participation_{k}", rows_of([0.3]), {"local.lr": 0.2 + k})
        (path / "participation.jsonl").write_text(f"{json.dumps(GOOD)}\n{json.dumps(row)}\n")
    for k, content in enumerate(COUNTS):
        path = write_run(folder / f"counts_{k}", rows_of([0.3]), {"local.lr": 0.02 + k})
        (path / "partition_counts.json").write_text(content)
    for k, line in enumerate(LINES):
        path = write_run(folder / f"rows_{k}", rows_of([0.3]), {"local.lr": 0.03 + k})
        with (path / "metrics.jsonl").open("a") as file:
            file.write(line + "\n")
    (write_run(folder / "summary", rows_of([0.3]), {"local.lr": 99}) / "summary.json").write_text(DEEP)
    return write_run(folder / "good", rows_of([0.7, 0.75]), {"algorithm.name": "focus"})


@pytest.mark.slow
def test_damaged_runs_are_named_and_the_others_reported(tmp_path, caplog, undrawn):
    damaged_runs(tmp_path / "runs")
    page = Page(write_report(tmp_path / "runs", tmp_path / "out", pdf=False))
    told = [record.message for record in caplog.records if record.name.startswith("raylfl")]
    assert len(told) == len(CONFIGS)
    for name, (_, why) in CONFIGS.items():
        (line,) = (line for line in told if f"/{name} is left out" in line)
        assert why in line
        assert len(line.splitlines()) == 1
        assert " ".join(line.split()) in page.words
    assert "75.00" in page.words
    for k in range(len(PARTICIPATION)):
        assert f"participation_{k} is damaged: participation.jsonl: line 2 cannot be read." in page.words
    for k in range(len(COUNTS)):
        assert f"counts_{k} is damaged: partition_counts.json cannot be read." in page.words
    for k in range(len(LINES)):
        assert f"rows_{k} is damaged: metrics.jsonl: line 2 cannot be read." in page.words


def test_damaged_runs_do_not_end_the_list_of_runs(tmp_path, capsys):
    damaged_runs(tmp_path)
    (write_run(tmp_path / "bare", rows_of([0.3])) / "config.yaml").write_text("seed: 1\n")
    assert main(["runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "FOCUS" in out or "focus" in out
    assert "?" in out


def test_where_no_run_can_be_read_all_are_named(tmp_path):
    for name in ("a", "b"):
        (write_run(tmp_path / name, rows_of([0.3])) / "config.yaml").write_text("- 1\n")
    with pytest.raises(BadConfig, match=r"a is left out: .*must be a mapping.*\n.*b is left out"):
        write_report(tmp_path, tmp_path / "out")


ODD = [None, True, -1, 10**30, 10**400, 1e308, math.nan, math.inf, "", "$x^{", "=1", "a\nb", [], [1, [2]], {}]
ODD += [{"a": {"b": 1}}, {1: 2, "x": 3}, "x" * 3000, "é漢", [None], "..", "/"]


def mutated(value, rng):
    """The value with something inside it lost, or replaced by a value of another kind."""
    if isinstance(value, dict | list) and value and rng.random() < 0.8:
        place = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        if rng.random() < 0.15:
            del value[place]
        else:
            value[place] = mutated(value[place], rng)
        return value
    return rng.choice(ODD)


def replace_contents(path, rng):
    """Leaves a well-formed file whose content is not that of a run."""
    if path.name == "config.yaml":
        path.write_text(yaml.safe_dump(mutated(yaml.safe_load(path.read_text()), rng)))
    else:
        rows = mutated([json.loads(line) for line in path.read_text().splitlines()], rng)
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows) if isinstance(rows, list) else "?")


def overwrite(path, rng):
    data = bytearray(path.read_bytes())
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data))
        data[at : at + rng.randint(0, 9)] = rng.choice(NOISE)
    path.write_bytes(data)


@pytest.mark.parametrize(("damage", "seed"), one_in(6, list(product((overwrite, replace_contents), range(24)))))
def test_whatever_stands_in_the_files_of_a_run_the_report_is_computed_and_has_the_good_run(tmp_path, damage, seed):
    """All computations of a report, without drawing."""
    rng = random.Random(seed)
    bad, good = write_run(tmp_path / "bad", rows_of([0.1, 0.2, 0.3])), write_run(tmp_path / "good", rows_of([0.5]))
    for name in rng.sample(FILES, 3):
        damage(bad / name, rng)
    runs, left_out = read_runs(tmp_path)
    assert good in [run.path for run in runs]
    assert len(runs) + len(left_out) == 2
    groups = group_runs(runs)
    parts, metric = facets(groups), main_metric(runs)
    shown = [tables.summary(parts, metric, last=2, target=0.3), tables.best_settings(parts, metric, 2)]
    shown += [tables.differences(groups), tables.common(groups), tables.environment(runs), tables.run_list(groups)]
    for table in filter(None, shown):
        for convert in FORMATS.values():
            assert convert(table)
    for pictures in (partition_pictures, participation_pictures):
        pictures(groups)


HOSTILE = ("cost_$x^{$", "a$b$c", r"\$x", "${", r"\frac{1", "100%_#&~", "x^{y", "$$$", "naïve–name")


@pytest.mark.parametrize("text", HOSTILE)
def test_texts_reach_a_picture_unchanged(text):
    """Balanced dollars would else be set as a formula, unbalanced braces end the report."""
    with rc():
        figure = Drawing()
        ax = figure.subplots()
        ax.plot([0, 1], [0, 1], label=text)
        ax.set(title=text, xlabel=text, xticks=[0, 1], xticklabels=[text, text])
        ax.legend()
    figure.canvas.draw()  # outside rc, like a caller that saves the figure
    shown = [artist for artist in figure.findobj(Text) if artist.get_text() == text]
    assert len(shown) >= 4
    assert all(artist._preprocess_math(text) == (text, False) for artist in shown)


def test_every_picture_is_drawn_without_formulas():
    figure = partition_figure(np.array([[3, 4], [5, 6]]), ["$a^{", "b$"], title="$x^{")
    assert isinstance(figure, Drawing)
    figure.canvas.draw()


def test_powers_of_ten_are_plain_text():
    with rc():
        figure, x = Drawing(), np.array([1.0, 1e3, 1e6])
        near, far = Curve(x, 1 / x**2, 1 / x**2, 1 / x**2), Curve(x[:2], 1 / x[:2], 1 / x[:2], 1 / x[:2])
        draw(figure.subplots(), [(near, LineStyle()), (far, LineStyle())], "global/distance", "floats")
        figure.canvas.draw()
    (ax,) = figure.axes
    shown = {label.get_text() for axis in (ax.xaxis, ax.yaxis) for label in axis.get_ticklabels(which="both")}
    assert "10⁻¹²" in shown
    assert "10³" in shown or "10⁶" in shown
    assert not any(set("$\\{}^") & set(text) for text in shown)


def test_no_cell_of_a_csv_is_a_formula_and_numbers_stay_numbers(tmp_path):
    cells = ["=1+1", "+x", "-x", "@sum", "\tx", -0.5, "-0.5", "+1e-3", "a=b", "", "–"]
    _, read = csv.reader(csv_text([dict(enumerate(cells))]).splitlines())
    assert read == ["'=1+1", "'+x", "'-x", "'@sum", "'\tx", "-0.5", "-0.5", "+1e-3", "a=b", "", "–"]
    runs = [load_run(write_run(tmp_path / p, rows_of([0.1]), {"partition.path": p})) for p in ("=1+1.json", "@b")]
    lines = list(csv.DictReader(to_csv(tables.differences(group_runs(runs))).splitlines()))
    assert [line["partition.path"] for line in lines] == ["'=1+1.json", "'@b"]


@pytest.mark.parametrize("link", ["report", "report/index.html", "report/summary.csv"])
def test_a_report_in_a_run_directory_follows_no_link_out_of_it(tmp_path, link):
    folder, outside = write_run(tmp_path / "runs" / "a", rows_of([0.3])), tmp_path / "outside"
    path = folder / link
    if link == "report":
        outside.mkdir()
    else:
        outside.write_text("as before")
        path.parent.mkdir()
    path.symlink_to(outside)
    with pytest.raises(BadConfig, match=r"is a symbolic link to .*, outside the directory"):
        write_report([folder], folder / "report", pdf=False)
    assert list(outside.iterdir()) == [] if outside.is_dir() else outside.read_text() == "as before"
