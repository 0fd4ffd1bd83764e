"""The ledger: a row is a whole run, committed pages are those that it generates, the authors' logs read as printed."""

import gzip
import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from papers import ledger, sfl_grid, sfl_tables
from papers.base import find, plain
from papers.gallery import _runs, experiments, gallery, pages
from papers.grid import Point
from papers.ledger import Row, run_of
from papers.ledger_rows import LedgerRows
from papers.publish import _cache, _images, publish
from papers.run_cache import RunCache
from raylfl.cli import main
from raylfl.errors import BadConfig, DataMissing
from raylfl.execution.planned import ORIGIN
from raylfl.report.derived import Stat
from raylfl.report.runs import Group, RunRecord, load_run
from raylfl.runtime.records.run_dir import DIVERGED
from tests.papers.caches import DryCache, setting, toy
from tests.shares import also

ROOT = Path(__file__).resolve().parents[2]
LEDGERS = sorted(path.parent for path in (ROOT / "results").rglob(ledger.ROWS))
TOY = toy()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of a whole run of a commit without changes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raylfl.runtime.records.summary.raylfl_commit", lambda: "c0ffee")
        return RunCache(tmp_path_factory.mktemp("made"), jobs=1).groups([TOY])[0].runs[0].path


@pytest.fixture
def run(made, tmp_path):
    """A copy of the whole run, which a test may damage."""
    return load_run(shutil.copytree(made, tmp_path / "runs" / made.name))


def changed(run, **summary):
    """The run with other values in its summary, read again."""
    path = run.path / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | summary))
    return load_run(run.path)


def test_a_row_has_everything_that_tables_and_checks_need(run):
    row = ledger.row(run, {"run": "toy"}, "raylfl reproduce x")
    assert (row.seed, row.rounds, row.commit, row.diverged) == (0, 4, "c0ffee", False)
    assert run.path.name.endswith(f"-s0-{row.digest}")
    assert row.machine["cpu"]
    assert row.versions["torch"]
    assert row.params_sha256 == run.summary["params_sha256"]
    assert [r for r, _ in row.curve] == [0, 1, 2, 3]
    assert row.curve[-1][1] == pytest.approx(run.column(row.metric)[-1], abs=1e-6)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda run: (run.path / "summary.json").unlink(), "not finished"),
        (lambda run: changed(run, raylfl_commit="c0ffee+changes"), "differ from their commit"),
        (lambda run: changed(run, own_commit="decade+changes"), "with code of yours that is in no git commit"),
        (lambda run: changed(run, own_commit=None), "with code of yours that is in no git commit"),
        (lambda run: (run.path / "metrics.jsonl").write_text('{"round": 0}\n'), "1 of its 4 rounds"),
        (lambda run: (run.path / "metrics.jsonl").open("a").write("{broken\n"), "cannot be read"),
        (lambda run: edit_config(run, "lr: 0.1", "lr: 0.2"), "not that of its name"),
    ],
)
def test_an_incomplete_run_is_refused_with_the_reason(run, damage, message):
    damage(run)
    with pytest.raises(BadConfig, match=message):
        ledger.check_complete(load_run(run.path))


@pytest.mark.parametrize(("own", "kept"), [("decade", "decade"), ("c0ffee", None)])
def test_a_row_and_its_page_name_the_commit_of_the_users_code_if_it_is_another(run, own, kept, tmp_path):
    run = changed(run, own_commit=own)
    ledger.check_complete(run)
    row = ledger.row(run, {"run": "toy"})
    assert (row.commit, row.own_commit) == ("c0ffee", kept)
    ledger.add(tmp_path / "ledger", [row])
    assert ledger.read(tmp_path / "ledger") == [row]
    text = "\n".join(_runs("mine", [row]))
    assert ("| c0ffee, decade |" in text) == ("first is raylfl's, and the second" in text) == (kept is not None)


def test_a_diverged_run_has_a_row_with_its_commit(tmp_path, monkeypatch):
    monkeypatch.setattr("raylfl.runtime.records.summary.raylfl_commit", lambda: "c0ffee")
    cache = RunCache(tmp_path, jobs=1)
    (run,) = cache.groups([toy("far", **{"local.lr": 1e7, "rounds": 20})])[0].runs
    run = load_run(run.path)
    row = ledger.row(run, {}, "")
    assert (row.diverged, row.commit, row.rounds) == (True, "c0ffee", 20)
    assert f"round {row.diverged_at}" in (run.path / DIVERGED).read_text()
    assert 0 < row.diverged_at < 20
    assert row.seconds is not None
    ledger.add(tmp_path / "ledger", [row])
    assert ledger.read(tmp_path / "ledger") == [row]
    assert row.machine["cpu"]
    assert row.versions["torch"]
    (run.path / ORIGIN).unlink()
    with pytest.raises(BadConfig, match="without a record of its commit"):
        ledger.check_complete(run)


def edit_config(run, old, new):
    path = run.path / "config.yaml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


def test_a_row_comes_once_and_the_file_is_sorted(tmp_path):
    rows = [cell(lr=lr) for lr in (0.3, 0.1)]
    assert ledger.add(tmp_path, rows) == 2
    before = (tmp_path / ledger.ROWS).read_bytes()
    assert ledger.add(tmp_path, rows) == 0
    assert (tmp_path / ledger.ROWS).read_bytes() == before
    assert [row.cell["lr"] for row in ledger.read(tmp_path)] == [0.1, 0.3]
    assert ledger.add(tmp_path, [replace(rows[0], seconds=9.0)]) == 1
    assert len(ledger.read(tmp_path)) == 2


def cell(lr=0.1, method="PFL", level=0.9, seed=1234, **changes):
    """A made-up row of table 10 that ends at a level, with a wave of half a point."""
    curve = [[r, level + 0.005 * (-1) ** (r // 10)] for r in range(9, 1000, 10)]
    where = {"task": "MNIST, logistic", "classes": 1, "steps": 5, "method": method, "lr": lr, "clip": 10}
    last = {str(k): level for k in ledger.WINDOWS}
    row = Row(where, seed, f"{method}{lr}", "test/accuracy", 1000, False, last, curve, 1.0, {}, {}, None, None)
    return replace(row, **changes)


def point_of(row):
    keys = ("task", "classes", "steps", "method", "lr")
    return Point({key: row.cell[key] for key in keys} | {"norm": "medium", "stage": 0})


def groups_of(*rows):
    """The runs of made-up rows: point -> its runs."""
    groups = {}
    for row in rows:
        groups.setdefault(point_of(row), Group("", {}, [])).runs.append(run_of(row, {}, ""))
    return groups


def reference(row, level, std):
    numbers = [level, std, 100, 100.0]
    return {point_of(row): sfl_grid.Reference(row.cell, "", {"40": numbers, "400": numbers}, [])}


@pytest.mark.parametrize(
    ("level", "word", "same"),
    [
        (0.9, "within", "yes"),
        (0.907, "within", "not shown"),
        (0.92, "below", "not shown"),
        (0.88, "above", "not shown"),
    ],
)
def test_a_cell_is_judged_by_the_spread_of_the_authors_log_and_by_a_margin(level, word, same):
    row = cell()
    refs = reference(row, level, 0.01)
    (line,) = lines = sfl_tables.rate_lines(groups_of(row), refs)
    assert (line["verdict"], line["same"]) == (word, same)
    (claim,) = sfl_tables.mostly_within(lines, "")
    assert claim.holds == (word == "within")
    assert sfl_tables.rate_lines(groups_of(replace(row, seed=row.seed + 1)), refs) == []  # the logs have one seed


def test_the_differences_of_all_cells_with_the_authors_networks_are_told():
    rows = [cell(lr, level=level) for lr, level in ((0.01, 0.9), (0.03, 0.91), (0.1, 0.902), (0.3, 0.5))]
    rows[3] = replace(rows[3], cell=rows[3].cell | {"task": "MNIST, MLP without dropout"})
    refs = {point: ref for row in rows for point, ref in reference(row, 0.9, 0.01).items()}
    told = sfl_tables.differences(groups_of(*rows), refs)
    assert "3 cells" in told
    assert "median |difference| 0.20 points, below 0.5 points in 2 cells (67 %), mean difference +0.40 points" in told


@pytest.mark.parametrize(
    ("means", "std", "word"),
    [
        ([0.9, 0.901, 0.899], 0.001, "yes"),
        ([0.9, 0.901, 0.899], 0.02, "not shown"),  # too few seeds for so large a spread
        ([0.91, 0.911, 0.909], 0.001, "not shown"),
        ([0.9, 0.901], 0.001, "undecided"),
    ],
)
def test_a_cell_of_table_11_is_the_published_one_only_if_three_seeds_show_it(means, std, word):
    assert sfl_tables.same_seeds(means, Stat(0.9, std, 1, 1)) == word


def test_the_figure_shows_the_cells_that_differ_first_with_the_whole_of_their_logs(tmp_path):
    table = find("sfl/table10")
    points = [point for point in table.points("paper") if point.lr == 0.1 and point.method == "PFL"]
    groups = table.groups(DryCache(tmp_path, "paper"), points)
    log = [[r, 0.5] for r in range(9, 1000, 20)]
    refs = dict.fromkeys(points, sfl_grid.Reference({}, "", {}, log))
    line = {"block": "MNIST, LeNet-5", "cell": "C=2, K=20", "method": "PFL", "remark": "lr 0.1 above"}
    drawn = sfl_tables.overlay(groups, refs, [line])
    assert len(drawn.axes) == 12
    assert drawn.axes[0].get_title(loc="left") == "MNIST, LeNet-5\nC=2, K=20, PFL\nlr 0.1 above"
    ends = [(line.get_xdata()[-1], line.get_ydata()[-1]) for line in drawn.axes[0].lines]
    assert (log[-1][0] + 1, 50.0) in ends


def test_a_diverged_cell_is_shown_as_diverged():
    row = cell(diverged=True, last={"40": None, "100": None, "400": None})
    (line,) = sfl_tables.rate_lines(groups_of(row), reference(row, 0.9, 0.01))
    assert line["verdict"] == "diverged"


def test_methods_are_compared_at_their_best_rates_once_the_grid_is_complete():
    pfl = [cell(lr, "PFL", level) for lr, level in ((0.01, 0.80), (0.03, 0.9), (0.1, 0.85), (0.3, 0.7))]
    sfl = [cell(lr, "SFL", level) for lr, level in ((0.003, 0.92), (0.01, 0.91), (0.03, 0.8), (0.1, 0.7))]
    assert sfl_tables.method_claims(groups_of(*pfl, *sfl[:3])) == []
    (claim,) = sfl_tables.method_claims(groups_of(*pfl, *sfl))
    assert claim.holds is None
    assert "+2.00 points; one seed" in claim.evidence
    more = [cell(0.03, "PFL", 0.9, seed) for seed in (0, 1)] + [cell(0.003, "SFL", 0.92, seed) for seed in (0, 1)]
    (claim,) = sfl_tables.method_claims(groups_of(*pfl, *sfl, *more))
    assert claim.holds is True
    assert "+2.00" in claim.evidence


def test_the_last_complete_series_of_a_cell_counts(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYLFL_DATA", str(tmp_path))
    where = {"task": "MNIST, logistic", "classes": 1, "steps": 5, "method": "PFL", "lr": 0.1, "clip": 10}
    with pytest.raises(DataMissing, match="RAYLFL_DATA"):
        sfl_grid.log_of(where, 1000)
    (tmp_path / "published").mkdir()
    head = "data,model,method,classes,local_steps,lr,clip_norm,seed,rounds,round,test_accuracy_percent"
    rows = [f"mnist,logistic,PFL,1,5,0.1,10,1234,1000,{r},{v}" for r, v in ((5, 1), (1000, 2), (4, 50), (8, 75))]
    with gzip.open(tmp_path / sfl_grid.FILE, "wt") as file:
        file.write("\n".join([head, *rows]) + "\n")
    assert sfl_grid.log_of(where, 1000) == [(3, 0.5), (7, 0.75)]
    assert sfl_grid.log_of(where | {"lr": 0.7}, 1000) is None


@pytest.mark.parametrize(
    "folder", [(also if path.match("fedacs/fig*") else pytest.param)(path, id=str(path)) for path in LEDGERS]
)
def test_the_committed_tables_and_verdicts_are_those_of_the_ledger(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("RAYLFL_RUNS", str(tmp_path / "runs"))
    for figure in ("lines.curves_figure", "lines.sweeps_figure", "sfl_tables.overlay"):  # a second each
        monkeypatch.setattr(f"papers.{figure}", lambda *parts: Figure())
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **options: None)
    monkeypatch.setattr("papers.publish.write_pages", lambda *places: [])  # the next test but one is about them
    name = folder.relative_to(ROOT / "results").as_posix()
    again = tmp_path / "results" / name
    shutil.copytree(folder, again)
    for made in (*again.glob("*.md"), *again.glob("*.csv"), again / "verdicts.json"):
        made.unlink()
    try:
        publish([name], results=tmp_path / "results", docs=tmp_path / "docs")
    except DataMissing as error:
        pytest.skip(str(error))
    except BadConfig as error:
        assert "row in the ledger is older than" in str(error)
        pytest.skip("the rows are older than numbers that the findings need")
    for path in (path for path in folder.iterdir() if path.suffix != ".png"):
        assert (again / path.name).read_text() == path.read_text(), path.name


def test_an_experiment_of_few_points_a_run_finds_in_the_rows_what_it_finds_in_the_runs(monkeypatch):
    monkeypatch.setattr("papers.focus.logs", dict)
    rows = ledger.read(ROOT / "results/focus/fig9-start")
    (table,) = find("focus/fig9-start").run(LedgerRows(find("focus/fig9-start"), rows)).tables
    assert len(table.rows) == len(rows) > 0
    for row in rows:
        late = [value for r, value in row.curve if r >= 800]
        panel, name = row.cell["participation"], row.cell["method"]
        (line,) = [line for line in table.rows if (plain(line["panel"]), plain(line["method"])) == (panel, name)]
        assert line["ours"].mean == pytest.approx(np.mean(late), abs=1e-12)
        assert line["ours"].std == pytest.approx(np.std(late, ddof=1), abs=1e-12)


def test_the_committed_pages_are_those_of_the_ledger():
    made = pages(ROOT / "results", ROOT / "docs")
    for path, text in made.items():
        assert path.read_text() == text, f"{path.name}: `raylfl publish` writes it anew"
    known = {path for path in made if path.parent.name == "results"}
    assert set((ROOT / "docs/results").glob("*.md")) == known


@pytest.mark.parametrize(("name", "message"), [("sfl/nothing", "no experiment"), ("sfl/fig1", "no finished runs")])
def test_what_cannot_be_published_is_refused_and_nothing_is_written(name, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("RAYLFL_RUNS", str(tmp_path / "runs"))
    out = ["--results", str(tmp_path / "results"), "--docs", str(tmp_path / "docs")]
    assert main(["publish", name, *out]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_only_an_experiment_whose_cells_can_be_chosen_is_published_in_part(run, tmp_path):
    toy = replace(TOY, cell={"method": "toy"})
    rows = [ledger.row(run, toy.cell, "")]
    (group,) = LedgerRows(find("audit/scaffold-network"), rows).groups([replace(toy, label="x", cell={}), toy], (0, 1))
    assert [one.config["seed"] for one in group.runs] == [0]
    whole = find("audit/scaffold")
    whole.measures = {}
    with pytest.raises(BadConfig, match="runs of 1 settings are missing"):
        LedgerRows(whole, rows).groups([toy], (0, 1))


def on(path, number=0):
    """A run on a folder of images, or on another data set if path is None."""
    data = {"name": "image_folder", "init_args": {"path": path}} if path else {"name": "cifar10", "init_args": {}}
    return RunRecord(Path(f"run-{number}"), {"data": data, "seed": 0}, np.zeros(0), {}, {})


def test_runs_on_other_images_are_looked_for_with_these_images(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYLFL_RUNS", str(tmp_path))
    assert _images([on("a.tgz"), on("a.tgz")]) == "a.tgz"
    assert _images([on(None)]) is None
    assert _images([]) is None
    with pytest.raises(BadConfig, match=r"different data: a\.tgz, the experiment's own data set"):
        _images([on("a.tgz"), on(None)])
    experiment = find("audit/fednova-cifar")
    base = setting("x", ["reproduce/audit_network", "data/cifar10"])
    for images, name in (("a.tgz", "image_folder"), (None, "cifar10")):
        data = _cache("audit/fednova-cifar", experiment, images).plan(base, 0).config["data"]
        assert data["name"] == name
        assert data["init_args"].get("path") == images


@pytest.mark.parametrize(
    ("change", "last"),
    [({}, 12), ({"diverged_at": None}, 11), ({"curve": []}, 12), ({"curve": [], "diverged_at": 0}, 0)],
)
def test_a_diverged_row_is_a_run_that_ends_in_an_infinite_value(change, last):
    audit = find("audit/scaffold-network")
    row = next(row for row in ledger.read(ROOT / "results/audit/scaffold-network") if row.cell["method"] == "scaffold")
    ended = replace(row, diverged=True, diverged_at=13, curve=[[0, 0.2], [10, 0.3]])
    cache = LedgerRows(audit, [replace(ended, **change)])
    (line,) = audit.run(cache).tables[0].rows
    assert line["accuracy"].mean == math.inf
    (group,) = cache.groups([replace(TOY, cell={"method": "SCAFFOLD"})])
    assert group.runs[0].rounds[-1] == last


def test_the_gallery_says_what_has_not_been_run():
    rows = ledger.read(ROOT / "results/fedavg/table1")
    told = find("fedavg/table1").missing(rows[:1])
    assert told == ["no run of 119 of 120 cells", "1 of 3 seeds of IID, C=0.1, lr 0.215, pixels 0..1"]
    audit = find("audit/scaffold-digits")
    rows = ledger.read(ROOT / "results/audit/scaffold-digits")
    assert (audit.whole(), audit.missing(rows)) == (30, [])
    kept = [row for row in rows if (row.cell["method"], row.seed == 0) != ("fedavg", False)]
    kept = [row for row in kept if row.cell["method"] != "fedprox"]
    assert audit.missing(kept) == ["no run of FedProx", "1 of 3 seeds of FedAvg"]
    grid = [cell(lr) for lr in (0.01, 0.03, 0.1, 0.3)]
    told = find("sfl/table11").missing(grid)
    assert told == ["no run of 71 of 72 cells", "1 of 3 seeds of MNIST, logistic, C=1, K=5 PFL"]
    assert find("sfl/table11").missing(grid[:3])[1] == "not all values of lr of MNIST, logistic, C=1, K=5 PFL"
    assert "audit/fednova-network" in gallery(experiments(ROOT / "results"))


def test_pictures_of_partitions_are_published_without_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYLFL_RUNS", str(tmp_path / "runs"))
    publish(["focus/fig8"], results=tmp_path / "results", docs=tmp_path / "docs")
    gallery = (tmp_path / "docs/results.md").read_text()
    assert "[focus/fig8](results/focus-fig8.md)" in gallery
    assert "../../results/focus/fig8/" in (tmp_path / "docs/results/focus-fig8.md").read_text()


def test_a_page_names_the_bits_of_each_run_and_where_they_are_repeated(tmp_path):
    rows = [cell(commit="c0ffee" * 7, params_sha256="ab" * 32, command="raylfl reproduce sfl/table10 --only lr=0.1")]
    ledger.add(tmp_path / "sfl/table10", [*rows, cell(0.3, diverged=True)])
    (tmp_path / "sfl/table10/verdicts.json").write_text('{"claims": [], "notes": []}')
    text = pages(tmp_path, tmp_path)[tmp_path / "results/sfl-table10.md"]
    assert "| c0ffeec0ff | `ababababab` |" in text
    assert "git checkout c0ffeec0ff\nraylfl reproduce sfl/table10 --only lr=0.1" in text
    assert "at later commits it has the same accuracies up to about one test image" in text
