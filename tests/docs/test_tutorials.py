"""The tutorials work: every command is executed, and every output compared."""

from pathlib import Path

import pytest

from raylfl.tune.spec import load_sweep
from tests.docs.pages import blocks, carry_out, raylfl
from tests.shares import also

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = sorted((ROOT / "docs/tutorials").glob("*.md"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["first-run", "own-algorithm", "own-model-and-data", also("paper"), also("sweep")])
def test_a_tutorial_prints_what_its_page_shows(here, name, one_core, undrawn, monkeypatch):
    monkeypatch.setattr("raylfl.python.control.in_notebook", lambda: True)  # where Python prints a run's progress
    page = ROOT / "docs/tutorials" / f"{name}.md"
    executable = [block for block in blocks(page) if block[0] in ("bash", "python") and not block[1]]
    assert carry_out(page, here) == len(executable) > 1


def test_the_sweep_of_the_tutorial_is_accepted(here):
    files = {title: content for _, title, content in blocks(ROOT / "docs/tutorials/sweep.md") if title}
    (here / "rates.yaml").write_text(files["rates.yaml"])
    assert len(load_sweep("rates.yaml").cells()) == 4


def test_no_tutorial_is_forgotten():
    """That of the cluster is executed by tests/jobs/test_cluster.py, which submits to one."""
    executed = {"first-run", "own-algorithm", "own-model-and-data", "paper", "sweep"}
    assert {page.stem for page in TUTORIALS} == {*executed, "cluster"}


def test_the_program_of_coming_from_runs(here):
    files = {
        title: content
        for name in ("tutorials/own-model-and-data", "coming-from")
        for _, title, content in blocks(ROOT / f"docs/{name}.md")
        if title
    }
    for name in ("waves.py", "small.yaml"):
        (here / name).write_text(files[name])
    code, said = raylfl(["raylfl", "run", "small.yaml", "logging.id=a"])
    assert code == 0, said
    assert "round 10/10" in said
