"""`raylfl reproduce`: its list, refusals, output and files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from papers.numbers import stat_of
from raylfl.cli import main
from raylfl.report.derived import Stat

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _runs(tmp_path, monkeypatch):
    monkeypatch.setenv("RAYLFL_RUNS", str(tmp_path))


@pytest.mark.parametrize("arguments", [["--list"], []])
def test_the_list_names_the_experiments_and_their_scales(arguments, capsys):
    assert main(["reproduce", *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("sfl/table3" in line and "smoke, paper" in line for line in lines)
    assert any("focus/fig4" in line and "always whole" in line for line in lines)


@pytest.mark.slow
def test_the_papers_are_found_from_any_folder_before_a_module_of_the_same_name_without_torch_or_ray(tmp_path):
    (tmp_path / "papers.py").write_text("raise ImportError('the user's own module')")
    code = "import sys; from raylfl.cli import main; code = main(['reproduce', '--list']); "
    code += "sys.exit(code or bool({'torch', 'ray', 'lightning'} & set(sys.modules)))"
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "sfl/table3" in done.stdout


def test_an_unknown_name_is_refused_with_the_nearest_before_anything_runs(capsys, tmp_path):
    assert main(["reproduce", "sfl/exdir", "focus/fig44"]) == 2
    assert "did you mean focus/fig4?" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_missing_data_end_the_paper_scale_in_one_clear_message(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("RAYLFL_DATA", str(tmp_path / "nowhere"))
    assert main(["reproduce", "focus/fig9", "--scale", "paper"]) == 2
    told = capsys.readouterr().err
    assert "cifar10" in told
    assert "RAYLFL_DATA" in told


def test_a_partition_picture_is_drawn_with_its_verdicts(capsys, tmp_path, undrawn):
    assert main(["reproduce", "sfl/exdir", "focus/fig8"]) == 0
    out = capsys.readouterr().out
    assert "no sample is left over" in out
    for place, stem in (("sfl/exdir", "exdir"), ("focus/fig8", "fig8")):
        folder = tmp_path / "reproduce" / place
        assert (folder / f"{stem}.png").is_file()
        claims = json.loads((folder / "verdicts.json").read_text())["claims"]
        assert all(claim["holds"] is True for claim in claims)
    assert (tmp_path / "reproduce/sfl/exdir/exdir.csv").read_text().startswith("partition,")


def test_a_smoke_run_prints_our_numbers_and_that_levels_are_not_comparable(capsys, tmp_path, undrawn):
    words = ["task=mnist-logistic", "classes=1", "steps=5", "method=sfl", "lr=0.1"]
    quick = ["--jobs", "1", "rounds=2", *(word for each in words for word in ("--only", each))]
    assert main(["reproduce", "sfl/table10", "--scale", "smoke", *quick]) == 0
    out = capsys.readouterr().out
    assert "MNIST, logistic" in out
    assert "not comparable" in out
    assert (tmp_path / "reproduce/sfl/table10/smoke/table10.png").is_file()


def test_published_numbers_are_read_as_fractions():
    assert stat_of("78.43±2.46") == Stat(pytest.approx(0.7843), pytest.approx(0.0246), 1, 1)
    assert stat_of("34.89").mean == pytest.approx(0.3489)
