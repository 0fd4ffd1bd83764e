"""The report at wandb, up to the save: its content and its refusals."""

import importlib.util
import json
import sys

import pytest

from raylfl.errors import BadConfig, RaylflError
from raylfl.report import wandb_report
from raylfl.report.page import content_of
from raylfl.report.wandb_report import SECTIONS, build, publish, sections, shared_keys
from raylfl.runtime.measured import METRICS
from tests.report.synthetic import rows_of, write_run

INSTALLED = importlib.util.find_spec("wandb_workspaces") is not None


@pytest.fixture
def sweep(tmp_path):
    """Two algorithms at two learning rates, as a sweep leaves them."""
    for k, (name, lr) in enumerate([("fedavg", 0.1), ("fedavg", 0.3), ("focus", 0.1), ("focus", 0.3)]):
        curve = [0.1 * k + 0.01 * r for r in range(10)]
        write_run(tmp_path / f"00{k}", rows_of(curve), {"algorithm.name": name, "local.lr": lr, "name": "tuning"})
    return tmp_path


def test_every_metric_is_under_one_heading_and_the_keys_are_those_that_differ(sweep):
    runs = content_of([sweep]).runs
    assert shared_keys(runs) == ["local.lr", "algorithm.gamma"]  # keys that all runs have and in which they differ
    found = sections(runs)
    shown = [name for names in found.values() for name in names]
    assert len(shown) == len(set(shown))
    assert found["Test set"] == ["test/accuracy", "test/loss"]
    assert set(found["Costs"]) >= {"cost/uplink_floats", "cost/local_steps"}


def test_every_metric_that_a_run_may_measure_has_a_heading():
    """METRICS is held against real runs by the tests of sweeps' metrics."""
    lost = [name for name in METRICS if not any(name.startswith(begins) for begins in SECTIONS.values())]
    assert lost == []


def test_a_missing_package_is_named_with_the_command_that_installs_it(sweep, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb_workspaces", None)
    with pytest.raises(BadConfig, match=r"pip install 'wandb>=0.19' 'wandb-workspaces>=0.4'"):
        build(content_of([sweep]), "somebody", "project")


@pytest.mark.parametrize("target", ["", "project", "/project", "entity/", "a/b/c"])
def test_an_impossible_place_is_refused(sweep, target):
    with pytest.raises(BadConfig, match="ENTITY/PROJECT"):
        publish([sweep], target)


@pytest.mark.skipif(not INSTALLED, reason="wandb-workspaces is not installed")
def test_wandbs_package_takes_the_report_which_has_a_panel_for_every_metric_grouped_by_algorithm(sweep):
    content = content_of([sweep])
    model = build(content, "somebody", "project")._to_model()
    assert (model.project.entity_name, model.project.name, model.display_name) == ("somebody", "project", "tuning")
    spec = json.loads(model.spec.model_dump_json(by_alias=True))
    assert "FOCUS, lr=0.3" in json.dumps(spec)
    grids = [block for block in spec["blocks"] if block["type"] == "panel-grid"]
    runset = grids[0]["metadata"]["runSets"][0]
    assert runset["filters"]["filters"][0]["value"] == ["tuning"]
    assert runset["grouping"] == [{"section": "config", "name": "algorithm.value.name"}]
    panels = grids[0]["metadata"]["panelBankSectionConfig"]["panels"]
    assert panels[0]["config"]["metrics"] == ["test/accuracy"]
    assert grids[-1]["metadata"]["runSets"][0]["grouping"] == []
    assert panels[0]["config"]["groupBy"] == "algorithm.value.name"
    lines = [panel for grid in grids for panel in grid["metadata"]["panelBankSectionConfig"]["panels"]]
    shown = [line["config"]["metrics"] for line in lines if "metrics" in line["config"]]
    assert shown == [[name] for names in sections(content.runs).values() for name in names]


class Refused:
    """A report that wandb refuses."""

    def save(self):
        raise ConnectionError("no route to host\nand more")


def test_what_wandb_refuses_ends_in_one_line(sweep, monkeypatch):
    monkeypatch.setattr(wandb_report, "build", lambda content, entity, project: Refused())
    monkeypatch.setattr(wandb_report, "logged_in", lambda: True)
    monkeypatch.setattr(wandb_report, "unreachable", lambda url: None)
    with pytest.raises(RaylflError, match=r"did not take the report \(no route to host\): is somebody/project yours"):
        publish([sweep], "somebody/project")


def test_without_a_login_there_is_a_message_and_no_prompt(sweep, monkeypatch, tmp_path):
    monkeypatch.setattr(wandb_report, "build", lambda content, entity, project: Refused())
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    with pytest.raises(RaylflError, match=r"not logged in at http://127.0.0.1:9: `wandb login`"):
        publish([sweep], "somebody/project")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    with pytest.raises(RaylflError, match=r"http://127.0.0.1:9 does not answer \(.*refused\)"):
        publish([sweep], "somebody/project")
