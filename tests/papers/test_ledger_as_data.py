"""The ledger as data: `raylfl.ledger`, runs published `--as NAME` from two machines, and the table of all claims."""

import csv
import json
import math
import re
import shutil
import subprocess
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import raylfl
from papers import ledger
from papers.base import EXPERIMENTS
from papers.publish import publish
from raylfl.cli import main
from raylfl.errors import BadConfig

ROOT = Path(__file__).resolve().parents[2]
SMALL = {"base": "digits", "rounds": 4, "num_clients": 4, "eval": {"every": 1}, "local": {"lr": 0.05}}
SMALL |= {"runtime": {"backend": "local"}}


def lines_of(name):
    """The rows of an experiment's file, read without the package."""
    return [json.loads(line) for line in (ROOT / f"results/{name}/runs.jsonl").read_text().splitlines()]


def test_a_table_has_each_row_of_the_file_and_the_published_number_of_its_cell():
    table, rows = raylfl.ledger("sfl/table10"), lines_of("sfl/table10")
    assert len(table) == len(rows)
    rates = {"PFL": ("0.01", "0.03", "0.1", "0.3"), "SFL": ("0.003", "0.01", "0.03", "0.1")}
    published = {}
    with (ROOT / "papers/published/sfl_rates.csv").open() as file:
        lines = [line for line in csv.DictReader(file) if line["norm"] == "medium"]
    for line, steps, (method, lrs) in product(lines, (5, 20, 50), rates.items()):
        place, texts = (line["task"], int(line["classes"]), steps, method), line[f"{method} K={steps}"].split()
        published |= {(*place, float(lr)): float(text) / 100 for lr, text in zip(lrs, texts, strict=True)}
    for row, line in zip(rows, table.to_dict("records"), strict=True):
        cell = row["cell"]
        assert {key: line[key] for key in cell} == cell
        assert (line["seed"], line["metric"], line["rounds"]) == (row["seed"], row["metric"], row["rounds"])
        origin = (row["machine"]["cpu"], row["versions"]["torch"], row["commit"])
        assert (line["cpu"], line["torch"], line["commit"]) == origin
        assert line["value"] == row["last"]["40"] or (math.isnan(line["value"]) and row["diverged"])
        task = cell["task"].removesuffix(" without dropout")
        assert cell["clip"] == {"PFL": 10, "SFL": 50}[cell["method"]]  # the medium norms
        expected = published[task, cell["classes"], cell["steps"], cell["method"], cell["lr"]]
        assert line["published"] == pytest.approx(expected)


def test_the_table_of_all_ledgers_has_every_row_and_other_numbers_than_accuracies():
    table = raylfl.ledger()
    files = {path.parent.relative_to(ROOT / "results").as_posix() for path in ROOT.glob("results/*/*/runs.jsonl")}
    assert dict(table["experiment"].value_counts()) == {name: len(lines_of(name)) for name in files}
    rounds = table[table["experiment"] == "fedavg/table1"]
    (line,) = rounds[(rounds["partition"] == "IID") & (rounds["fraction"] == 0.2)].to_dict("records")[:1]
    (row,) = [row for row in lines_of("fedavg/table1") if row["digest"] == line["digest"]]
    assert (line["metric"], line["value"]) == ("rounds to target", row["measures"]["rounds to target"])
    assert line["published"] == 77  # table 1 of the paper, 2NN, C = 0.2, IID


@pytest.mark.parametrize(
    ("name", "message"), [("sfl/table12", "did you mean sfl/table11"), ("focus/fig9", "raylfl reproduce focus/fig9")]
)
def test_a_ledger_without_rows_is_refused_with_a_remedy(name, message):
    with pytest.raises(BadConfig, match=f"{name} has no rows in .*{message}"):
        raylfl.ledger(name)


def test_an_installed_package_says_that_the_ledger_is_in_the_repository(monkeypatch, tmp_path):
    monkeypatch.setattr("raylfl.config.find.__file__", str(tmp_path / "raylfl/config/find.py"))
    with pytest.raises(BadConfig, match=r"raylfl.ledger needs the repository: .*clone it"):
        raylfl.ledger("sfl/table10")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two methods on two seeds, of a commit without changes."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("raylfl.runtime.records.summary.raylfl_commit", lambda: "c0ffee")
        patch.setenv("RAYLFL_RUNS", str(folder))
        return raylfl.compare(SMALL, [], ["fedavg", "focus"], seeds=[0, 1], progress=False)


@pytest.fixture
def machine(monkeypatch):
    return lambda name: monkeypatch.setattr("platform.node", lambda: name)


def paths(runs, *seeds):
    return [str(run.run_dir) for run in runs if f"-s{seeds[0]}-" in run.run_dir.name or len(seeds) > 1]


def publish_as(name, targets, root):
    lines = []
    publish(targets, name, results=root / "results", docs=root / "docs", tell=lines.append)
    return lines


@pytest.fixture(scope="module")
def published(runs, tmp_path_factory):
    """The folder in which all runs are published as `mine` by the machine `first`."""
    root = tmp_path_factory.mktemp("published")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("platform.node", lambda: "first")
        publish_as("mine", paths(runs, 0, 1), root)
    return root


@pytest.fixture
def file(published, tmp_path, machine):
    """The ledger's file in a copy of what is published, tmp_path, on the same machine."""
    machine("first")
    shutil.copytree(published, tmp_path, dirs_exist_ok=True)
    (file,) = (tmp_path / "results/mine").iterdir()
    return file


def test_a_comparison_becomes_a_ledger_with_means_over_seeds(runs, tmp_path, machine):
    machine("first")
    publish_as("mine/rates", [str(runs[0].run_dir.parent)], tmp_path)
    (file,) = (tmp_path / "results/mine/rates").iterdir()
    assert re.fullmatch(r"runs-[0-9a-f]{8}\.jsonl", file.name)
    table = raylfl.ledger("mine/rates", tmp_path / "results")
    assert set(table["algorithm.name"]) == {"fedavg", "focus"}
    assert set(table["local.lr"]) == {0.05}
    text = (tmp_path / "docs/results/mine-rates.md").read_text()
    for name, label in (("fedavg", "FedAvg"), ("focus", "FOCUS")):
        last = [run.metrics[-1]["test/accuracy"] for run in runs if run.run_dir.name.startswith(f"{name}-")]
        of_method = table[table["algorithm.name"] == name].sort_values("seed")
        assert of_method["value"].tolist() == pytest.approx(last, abs=1e-6)
        mean, std = 100 * np.mean(last), 100 * np.std(last, ddof=1)
        (line,) = [line for line in text.splitlines() if line.startswith((f"| {label} |", f"| **{label}** |"))][:1]
        assert f"{mean:.2f} ± {std:.2f}" in line
    assert "[mine/rates](results/mine-rates.md)" in (tmp_path / "docs/results.md").read_text()


def test_publishing_twice_changes_nothing(runs, tmp_path, file):
    files = {path: path.read_bytes() for path in tmp_path.rglob("*.*")}
    lines = publish_as("mine", paths(runs, 0, 1), tmp_path)
    assert lines == ["mine  0 rows new or changed, 4 runs checked"]
    assert files == {path: path.read_bytes() for path in tmp_path.rglob("*.*")}


def test_the_files_of_two_machines_are_merged_by_git_without_conflicts(runs, tmp_path, machine):
    """Each publishes one seed on a branch of its own; both have all runs of seed 0."""

    def git(*words):
        identity = ["-c", "user.name=x", "-c", "user.email=x@x"]
        subprocess.run(["git", "-C", str(tmp_path), *identity, *words], check=True, capture_output=True)

    git("init", "-b", "main")
    (tmp_path / ".gitattributes").write_text((ROOT / ".gitattributes").read_text())
    publish_as(None, [], tmp_path)
    git("add", ".")
    git("commit", "-m", "start")
    for name, seeds in (("first", (0,)), ("second", (0, 1))):
        git("checkout", "-b", name, "main")
        machine(name)
        publish_as("mine", paths(runs, *seeds), tmp_path)
        git("add", ".")
        git("commit", "-m", name)
    git("checkout", "first")
    git("merge", "second")
    publish_as(None, [], tmp_path)
    assert len(list((tmp_path / "results/mine").iterdir())) == 2
    table = raylfl.ledger("mine", tmp_path / "results")
    assert sorted(zip(table["algorithm.name"], table["seed"], strict=True)) == [
        (name, seed) for name in ("fedavg", "focus") for seed in (0, 1)
    ]
    merged = (tmp_path / "docs/results/mine.md").read_text()
    publish_as("mine", paths(runs, 0, 1), tmp_path / "alone")
    alone = (tmp_path / "alone/docs/results/mine.md").read_text()
    assert merged == alone


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sfl/tabel10", "did you mean sfl/table10"),
        ("sfl-table10", "sfl/table10 has the page sfl-table10.md"),
        ("../outside", "a name has letters"),
        ("audit/scaffold", "has not the setting of audit/scaffold"),
    ],
)
def test_a_name_that_is_taken_or_no_name_is_refused_and_nothing_is_written(name, message, runs, tmp_path, capsys):
    out = ["--results", str(tmp_path / "results"), "--docs", str(tmp_path / "docs")]
    assert main(["publish", *paths(runs, 0), "--as", name, *out]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_changed_run_and_names_without_runs_are_refused(runs, tmp_path):
    with pytest.raises(BadConfig, match="--as mine needs the directories of runs"):
        publish_as("mine", [], tmp_path)
    with pytest.raises(BadConfig, match="is a folder: give the name of its runs' ledger with --as"):
        publish_as(None, paths(runs, 0), tmp_path)


def test_the_claims_page_has_every_claim_with_its_verdict():
    words = {True: "holds", False: "**does not hold**", None: "open"}
    rows = [
        [cell.strip().replace("\x00", r"\|") for cell in line.strip("|").replace(r"\|", "\x00").split("|")]
        for line in (ROOT / "docs/claims.md").read_text().splitlines()
        if line.startswith("| ")
    ][2:]
    expected = []
    for path in sorted((ROOT / "results").rglob("verdicts.json")):
        name = path.parent.relative_to(ROOT / "results").as_posix()
        for claim in json.loads(path.read_text())["claims"]:
            expected.append((name, claim["text"].replace("|", r"\|"), words[claim["holds"]]))
    told = [(re.sub(r"\[(.*)\]\(.*\)", r"\1", row[1]), row[2], row[5]) for row in rows if row[5] != "no run"]
    assert sorted(told) == sorted(expected)
    assert {row[1] for row in rows if row[5] == "no run"} == set(EXPERIMENTS.names()) - {name for name, *_ in expected}
    assert all(len(row) == 7 and all(row) for row in rows)


def test_the_site_sorts_the_table_of_claims():
    text = (ROOT / "docs/claims.md").read_text()  # which test_ledger.py compares with what is generated
    assert '<div class="sortable" markdown>\n\n| paper |' in text
    site = (ROOT / "mkdocs.yml").read_text()
    assert "extra_javascript: [sort.js]" in site
    assert "md_in_html" in site
    assert '".sortable table"' in (ROOT / "docs/sort.js").read_text()


PAGE = """
const cell = (textContent) => {
  const listeners = {}, attributes = {};
  return {
    textContent, click: () => listeners.click(), getAttribute: (name) => attributes[name] ?? null,
    setAttribute: (name, value) => { attributes[name] = value; }, removeAttribute: (name) => delete attributes[name],
    addEventListener: (name, listener) => { listeners[name] = listener; },
  };
};
const body = { rows: ["10 / 30", "9 / 9", "2 / 15"].map((text) => ({ cells: [cell("x"), cell(text)] })) };
body.append = (...rows) => { body.rows = rows; };
const heads = [cell("claim"), cell("runs")], table = { tHead: { rows: [{ cells: heads }] }, tBodies: [body] };
const document = {
  addEventListener: (name, listener) => listener(), querySelectorAll: (what) => what === ".sortable table" && [table],
};
SCRIPT
for (const _ of [1, 2]) {
  heads[1].click();
  console.log(heads[1].getAttribute("aria-sort"), ...body.rows.map((row) => row.cells[1].textContent.split(" ")[0]));
}
"""


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node to run docs/sort.js")
def test_a_click_sorts_by_numbers_and_a_second_one_the_other_way():
    code = PAGE.replace("SCRIPT", (ROOT / "docs/sort.js").read_text())
    done = subprocess.run(["node", "-e", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["ascending 2 9 10", "descending 10 9 2"], done.stderr


def test_rows_of_a_machine_and_of_the_repository_are_one_ledger(tmp_path):
    rows = [ledger.Row({"lr": lr}, 0, "d", "m", 1, False, {}, [], 1.0, {}, {}, None, None) for lr in (0.1, 0.2)]
    ledger.add(tmp_path, rows[:1])
    other = [ledger.Row(**{**vars(row), "digest": "other"}) for row in rows]
    assert ledger.add(tmp_path, other, "runs-ab.jsonl") == 2
    assert {row.cell["lr"]: row.digest for row in ledger.read(tmp_path)} == {0.1: "d", 0.2: "other"}
    assert ledger.add(tmp_path, rows) == 1
    assert {row.digest for row in ledger.read(tmp_path)} == {"d"}


@pytest.mark.parametrize("name", ["mine/runs.jsonl", "runs-1.jsonl", "x" * 300, "SFL/table10", "mine\n"])
def test_a_name_that_hides_rows_or_other_pages_is_refused(name, runs, tmp_path):
    with pytest.raises(BadConfig, match=r"--as .*(has letters|has the page)"):
        publish_as(name, paths(runs, 0), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("line", ["<<<<<<< HEAD", "[1]", "{}", '{"later": 1}'])
def test_a_line_that_is_no_row_is_named(line, file, tmp_path):
    text = file.read_text()
    file.write_text(f"{text.splitlines()[0]}\n{line}\n{text}")
    with pytest.raises(BadConfig, match=rf"{file}, line 2, is no row of the ledger"):
        raylfl.ledger("mine", tmp_path / "results")


@pytest.mark.parametrize("model", [{}, {"model.name": None, "model.class_path": "nowhere.Net"}])
def test_a_row_without_an_option_of_today_has_the_setting_of_its_default(model, file, tmp_path):
    """Published by an earlier version; the same run published by this one counts once."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    for row in rows:
        row["cell"] |= model
    older = {**rows[0], "cell": {key: value for key, value in rows[0]["cell"].items() if key != "eval.batch_size"}}
    other_seed = {**older, "seed": 7}
    file.write_text("".join(json.dumps(row) + "\n" for row in (*rows, older, other_seed)))
    publish_as(None, [], tmp_path)
    table = raylfl.ledger("mine", tmp_path / "results")
    assert sorted(table["seed"]) == [0, 0, 1, 1, 7]
    assert set(table["eval.batch_size"]) == {500}
    assert "eval.batch_size=" not in (tmp_path / "docs/results/mine.md").read_text()


def test_a_class_of_the_users_is_not_imported_to_complete_a_row(file, tmp_path, monkeypatch):
    (tmp_path / "of_a_stranger.py").write_text("raise SystemExit('ran')\n")
    monkeypatch.syspath_prepend(tmp_path)
    row = json.loads(file.read_text().splitlines()[0])
    groups = ("model", "data", "algorithm")
    cells = [{f"{group}.name": None, f"{group}.class_path": "of_a_stranger.C"} for group in groups]
    cells.append({"algorithm.name": "of_a_stranger.C"})
    lines = [json.dumps({**row, "cell": row["cell"] | cell}) for cell in cells]
    file.write_text("\n".join(lines) + "\n")
    assert len(raylfl.ledger("mine", tmp_path / "results")) == 4
    publish_as(None, [], tmp_path)


def test_runs_on_two_data_sets_are_two_settings_and_their_folder_may_move(runs, tmp_path, machine):
    machine("first")
    folders = []
    for k, place in enumerate(["here/small", "here/large", "there/small"]):
        path = tmp_path / place
        path.mkdir(parents=True)
        rng = np.random.default_rng(k % 2)
        for half, count in (("train", 60), ("test", 20)):
            np.save(path / f"{half}_x.npy", rng.standard_normal((count, 8), dtype=np.float32))
            np.save(path / f"{half}_y.npy", rng.integers(0, 2, count))
        config = {**SMALL, "data": {"name": "npy", "init_args": {"path": str(path)}}, "base": []}
        config |= {"model": {"name": "mlp"}, "seed": k // 2, "logging": {"dir": str(tmp_path), "id": str(k)}}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("raylfl.runtime.records.summary.raylfl_commit", lambda: "c0ffee")
            folders.append(str(raylfl.run(config).run_dir))
    publish_as("data", folders, tmp_path)
    table = raylfl.ledger("data", tmp_path / "results")
    names = sorted(zip(table["data.init_args.path"], table["seed"], strict=True))
    assert names == [("large", 0), ("small", 0), ("small", 1)]


def test_a_run_that_diverges_before_its_first_value_is_said_to(tmp_path, file):
    row = json.loads(file.read_text().splitlines()[0])
    row |= {"cell": row["cell"] | {"local.lr": 1e30}, "metric": "train/loss", "curve": [], "curves": {}}
    file.write_text(file.read_text() + json.dumps({**row, "diverged": True, "diverged_at": 0, "last": {}}) + "\n")
    publish_as(None, [], tmp_path)
    lines = (tmp_path / "docs/results/mine.md").read_text().splitlines()
    assert "| FedAvg, lr=1e30 | 1 (1 diverged) | 1 | diverged | diverged | diverged |" in lines
