"""Selection of runs by conditions, and the keys in which runs differ."""

import pytest

import raylfl
from raylfl.cli import main
from raylfl.errors import BadConfig
from raylfl.report.runs import load_run
from raylfl.report.selection import condition, differing_keys, select
from tests.report.synthetic import write_run

SETTINGS = {  # name -> (config, final accuracy)
    "a": ({"algorithm.name": "fedavg", "local.lr": 0.1, "seed": 0}, 0.5),
    "b": ({"algorithm.name": "focus", "local.lr": 0.1, "seed": 0}, 0.8),
    "c": ({"algorithm.name": "focus", "local.lr": 0.2, "seed": 1}, 0.9),
}


@pytest.fixture
def folder(tmp_path):
    for name, (config, accuracy) in SETTINGS.items():
        rows = [{"round": r, "test/accuracy": accuracy - 0.1 * (1 - r)} for r in range(2)]
        write_run(tmp_path / "runs" / name, rows, config, finished=name != "c")
    return tmp_path / "runs"


def names(folder, *conditions):
    return [run.path.name for run in select([load_run(folder / name) for name in SETTINGS], conditions)]


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        ((), "abc"),
        (("algorithm=focus",), "bc"),
        (("algorithm.name!=focus",), "a"),
        (("local.lr=1e-1",), "ab"),
        (("local.lr = 0.1", "algorithm=focus"), "b"),
        (("test/accuracy>0.5",), "bc"),
        (("test/accuracy>=0.5",), "abc"),
        (("test/accuracy<0.9",), "ab"),
        (("test/accuracy<=0.5",), "a"),
        (("finished=true",), "ab"),
        (("diverged=true",), ""),
        (("rounds_done=2", "seed=1"), "c"),
        (("algorithm.mu=0.5",), None),
        (("local.lr=null",), ""),
    ],
)
def test_runs_are_selected_by_config_keys_components_and_newest_metrics(folder, conditions, expected):
    if expected is None:
        with pytest.raises(BadConfig, match=r"no run has algorithm.mu"):
            names(folder, *conditions)
    else:
        assert names(folder, *conditions) == list(expected)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("local.lr", "must be KEY=VALUE"),
        ("=3", "must be KEY=VALUE"),
        ("test/accuracy>high", "> needs a number"),
        ("local.lr<true", "< needs a number"),
        ("local.lr=[", "not yaml"),
    ],
)
def test_a_condition_that_is_none_is_refused(text, words):
    with pytest.raises(BadConfig, match=words):
        condition(text)


def test_a_misspelt_key_names_the_nearest_one(folder):
    with pytest.raises(BadConfig, match=r"no run has test/acuracy; did you mean test/accuracy\?"):
        names(folder, "test/acuracy>0.5")


def test_runs_differ_in_the_keys_that_were_changed(folder):
    runs = [load_run(folder / name) for name in SETTINGS]
    found = differing_keys(runs[:2])
    assert found.pop("algorithm.name") == ["fedavg", "focus"]
    assert all(key.startswith("algorithm.") for key in found)  # options of one of the two
    assert differing_keys(runs[1:])["local.lr"] == [0.1, 0.2]
    assert differing_keys(runs[1:])["versions.torch"] == ["2.13.0", None]  # c has not finished
    assert differing_keys([runs[0], runs[0]]) == {}


def test_the_command_line_and_python_print_the_same_selection(folder, capsys):
    assert main(["runs", str(folder), "--where", "algorithm=focus", "--where", "test/accuracy>0.85"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert "/c " in lines[1]
    table = raylfl.runs(folder, ["algorithm=focus", "test/accuracy>0.85"])
    assert [path.rpartition("/")[2] for path in table["path"]] == ["c"]
    assert main(["diff", str(folder / "b"), str(folder / "c")]) == 0
    printed = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()}
    assert printed["local.lr"] == ["0.1", "0.2"]
    table = raylfl.diff(folder / "b", folder / "c")
    assert table.loc["local.lr"].tolist() == [0.1, 0.2]
    assert set(table.index) == set(printed) - {"key"}
    assert main(["diff", str(folder / "b")]) == 2
    assert "1 run found, but at least 2 are needed" in capsys.readouterr().err
    assert main(["report", str(folder), "--where", "local.lr>1", "-o", str(folder / "page")]) == 2
    assert "no run meets --where local.lr>1" in capsys.readouterr().err


def test_equal_runs_are_told_so(runs, capsys):
    from tests.runtime.tiny import TINY

    folders = [raylfl.run(TINY, [*runs, "rounds=2"]).run_dir for _ in range(2)]
    assert main(["diff", *map(str, folders)]) == 0
    assert capsys.readouterr().out == (
        "all config keys, versions and commits are equal\nthe final parameters are equal, bit for bit\n"
    )
