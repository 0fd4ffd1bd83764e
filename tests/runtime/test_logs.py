"""Loggers beside metrics.jsonl, wandb among them: their content, also after a resume; no logger can stop a run."""

import csv
import json
import os
import time
import urllib.error

import pytest

import raylfl
from raylfl.errors import NonFinite
from raylfl.runtime.records import loggers, wandb_run
from raylfl.runtime.records.run_dir import RunDirectory
from tests.runtime.faults import wait_until
from tests.runtime.test_run import DIGITS, QUADRATICS
from tests.runtime.wandb_records import ended, keyed, records
from tests.test_cli import PLAIN


@pytest.fixture(autouse=True)
def _wandb_ends():
    """wandb's service process, and the variable that names it, end with each test."""
    yield
    import wandb

    wandb.teardown()
    os.environ.pop("WANDB_SERVICE", None)


def run(config, runs, *overrides):
    return raylfl.run(config, [*runs, *PLAIN, *overrides])


@pytest.mark.slow
def test_an_offline_run_of_wandb_holds_the_config_and_the_rounds_and_can_be_resumed(runs):
    """wandb links to a log outside the run, which may be left by a process that was killed."""
    result = run(DIGITS, runs, "logging.loggers=[wandb]", "algorithm.name=focus", "partition.name=dirichlet")
    wait_until(lambda: ended(result.run_dir), "end of wandb's file", seconds=60)  # wandb's service process writes it
    found = list(records(result.run_dir))
    (start,) = [r.run for r in found if r.WhichOneof("record_type") == "run"]
    assert (start.run_group, start.job_type, start.display_name) == ("digits", "focus", result.run_dir.name)
    assert start.run_id == (result.run_dir / "wandb_id.txt").read_text()
    config = {item.key: json.loads(item.value_json) for item in start.config.update}
    assert config["algorithm"]["name"] == "focus"
    assert config["local"] == result.config.resolved["local"]
    metrics = [r.metric for r in found if r.WhichOneof("record_type") == "metric"]
    assert any(m.glob_name == "*" and m.step_metric == "round" for m in metrics)
    rows = [keyed(r.history.item) for r in found if r.WhichOneof("record_type") == "history"]
    logged = [row for row in rows if "train/loss" in row]
    assert [row["round"] for row in logged] == [0, 1, 2, 3]
    for row, ours in zip(logged, result.metrics, strict=True):
        numbers = {k: v for k, v in ours.items() if isinstance(v, (int, float))}
        assert {k: row[k] for k in numbers} == pytest.approx(numbers)
    folder = result.run_dir
    assert any(path.is_symlink() and not path.resolve().is_relative_to(folder) for path in folder.rglob("*"))
    raylfl.resume(folder, ["rounds=5"])
    assert "failed" not in (folder / "log.txt").read_text()
    assert [path.name.rpartition("-")[2] for path in folder.glob("wandb/offline-run-*")] == [start.run_id] * 2


def test_a_logger_that_breaks_is_closed_with_one_line(runs, monkeypatch):
    class Broken:
        def log(self, metrics):
            if metrics["round"] == 2:
                raise OSError("no space left")

        def close(self):
            raise AssertionError("it was closed already")

    monkeypatch.setattr(loggers, "Csv", lambda config, run_dir, say: Broken())
    result = run(QUADRATICS, runs, "logging.loggers=[csv]")
    assert len(result.metrics) == 6
    lines = [line for line in (result.run_dir / "log.txt").read_text().splitlines() if "logger csv" in line]
    assert len(lines) == 1
    assert "no space left" in lines[0]


def test_a_logger_that_cannot_be_opened_is_left_out(runs, monkeypatch):
    def fails(config, run_dir, say):
        raise ImportError("no such package")

    monkeypatch.setattr(loggers, "TensorBoard", fails)
    result = run(QUADRATICS, runs, "logging.loggers=[tensorboard]")
    assert "logger tensorboard could not be opened and is left out" in (result.run_dir / "log.txt").read_text()


def test_the_csv_of_a_resumed_run_has_every_round_once(runs):
    result = run(QUADRATICS, runs, "rounds=3", "logging.loggers=[csv]")
    raylfl.resume(result.run_dir, ["rounds=5"])
    with open(result.run_dir / "csv" / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    ours = RunDirectory(result.run_dir).metrics()
    assert [int(row["step"]) for row in rows] == [0, 1, 2, 3, 4]
    assert [float(row["train/loss"]) for row in rows] == pytest.approx([row["train/loss"] for row in ours])


def test_tensorboard_gets_every_number_by_its_round(runs):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = run(QUADRATICS, runs, "logging.loggers=[tensorboard]")
    events = EventAccumulator(str(result.run_dir / "tensorboard"))
    events.Reload()
    points = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert points == [(row["round"], pytest.approx(row["train/loss"], rel=1e-6)) for row in result.metrics]


# -- wandb without its service ----------------------------------------------------------------------------------------


class Noted:
    """A run of wandb that keeps what it is given."""

    def __init__(self):
        self.logged, self.metrics, self.code = [], [], None

    def log(self, row):
        self.logged.append(row)

    def define_metric(self, name, **options):
        self.metrics.append((name, options))

    def finish(self, exit_code):
        self.code = exit_code


def logged(config, runs, *overrides):
    return run(config, runs, "logging.loggers=[wandb]", *overrides)


@pytest.fixture
def noted(monkeypatch):
    here = Noted()
    monkeypatch.setattr(wandb_run.WandbRun, "_begin", lambda self, config: here)
    return here


def test_it_is_given_no_events(runs, noted):
    result = logged(DIGITS, runs)
    wandb_run.WandbRun(result.config, None, print).log({"round": 9, "events": ["worker 1 was started again"]})
    assert noted.logged[-1] == {"round": 9}
    assert noted.code == 0


def test_a_run_that_ends_with_an_error_has_another_exit_code(runs, noted):
    with pytest.raises(NonFinite):
        logged(QUADRATICS, runs, "local.lr=1e200")
    assert noted.code == 1


@pytest.mark.parametrize(
    ("takes", "modes", "said"),
    [(True, ["online"], None), (False, ["online", "offline"], "wandb does not take the run (no room)")],
)
def test_a_run_that_the_server_does_not_take_is_logged_offline(runs, monkeypatch, takes, modes, said):
    import wandb

    noted, asked = Noted(), []

    def init(**options):
        asked.append(options)
        if options["mode"] == "online" and not takes:
            raise RuntimeError("no room\nat all")
        return noted

    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setattr(wandb_run, "mode", lambda: "online")
    result = logged(QUADRATICS, runs)
    assert [options["mode"] for options in asked] == modes
    first, run_id = asked[0], (result.run_dir / "wandb_id.txt").read_text()
    named = [first[key] for key in ("project", "group", "job_type", "name", "id", "resume", "dir")]
    name, folder = result.run_dir.name, str(result.run_dir)
    assert named == [result.config.logging.project, "quadratics", "fedavg", name, run_id, "allow", folder]
    assert first["config"] == result.config.resolved
    settings = first["settings"]
    assert (settings.base_url, settings.init_timeout) == (wandb_run.base_url(), wandb_run.INIT_SECONDS)
    assert (settings.silent, settings.disable_git, settings.console) == (True, True, "off")
    assert first["reinit"] == "create_new"  # beside a run of the caller's own
    lines = [line for line in (result.run_dir / "log.txt").read_text().splitlines() if "sends it later" in line]
    assert [line.partition(" ")[2] for line in lines] == (
        [f"{said}: logged offline, `wandb sync` sends it later"] if said else []
    )


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (urllib.error.HTTPError("http://a", 404, "not found", None, None), None),
        (urllib.error.URLError("refused"), "refused"),
        (TimeoutError(), "TimeoutError"),
        (ValueError("unknown url type"), "unknown url type"),
    ],
)
def test_a_server_answers_with_any_status_and_else_there_is_a_reason(monkeypatch, error, reason):
    def urlopen(request, timeout):
        assert (request.get_method(), request.full_url) == ("HEAD", "http://wandb.example")
        raise error

    monkeypatch.setattr(wandb_run.urllib.request, "urlopen", urlopen)
    assert wandb_run.unreachable("http://wandb.example") == reason


@pytest.mark.parametrize(("dies", "words"), [(True, "sends the rest"), (False, "sends what is missing")])
def test_a_wandb_server_that_dies_or_fails_delays_the_end_for_a_bounded_time(runs, monkeypatch, tmp_path, dies, words):
    """`finish` never returns, or raises: unsent data stay on disk, and a line names the command that sends them."""

    class Stuck(Noted):
        dir = str(tmp_path / "wandb" / "run-1" / "files")

        def finish(self, exit_code):
            if not dies:
                raise RuntimeError
            time.sleep(3600)

    monkeypatch.setattr(wandb_run.WandbRun, "_begin", lambda self, config: Stuck())
    monkeypatch.setattr(wandb_run, "FINISH_SECONDS", 0.2)
    result = logged(QUADRATICS, runs)
    assert len(result.metrics) == 6
    assert f"`wandb sync {tmp_path / 'wandb' / 'run-1'}` {words}" in (result.run_dir / "log.txt").read_text()


@pytest.mark.parametrize(
    ("environment", "netrc", "expected"),
    [
        ({}, "", "offline"),
        ({"WANDB_API_KEY": "x"}, "", "online"),
        ({}, "machine api.wandb.ai login user password x", "online"),
        ({"WANDB_BASE_URL": "http://wandb.example:8080"}, "machine api.wandb.ai login user password x", "offline"),
        ({"WANDB_BASE_URL": "http://wandb.example:8080"}, "machine wandb.example login user password x", "online"),
        ({}, "machine", "offline"),  # no netrc at all
        ({"WANDB_API_KEY": "x", "WANDB_MODE": "disabled"}, "", "disabled"),
    ],
)
def test_wandb_is_offline_unless_one_is_logged_in(monkeypatch, tmp_path, environment, netrc, expected):
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "netrc").write_text(netrc + "\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert wandb_run.mode() == expected
