"""The wandb logger without wandb's service: what it is given, when it is offline, and how long a run waits for it."""

from __future__ import annotations

import json
import time
import urllib.error

import numpy as np
import pytest

import raylfl
from raylfl.config.load import load_config
from raylfl.errors import NonFinite
from raylfl.runtime.records import wandb_run
from tests.runtime.test_run import DIGITS, QUADRATICS


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


def run(config, runs, *overrides):
    return raylfl.run(config, [*runs, "logging.loggers=[wandb]", *overrides])


@pytest.fixture
def noted(monkeypatch):
    here = Noted()
    monkeypatch.setattr(wandb_run.WandbRun, "_begin", lambda self, config, how: here)
    return here


def numbers(rows):
    return [{k: v for k, v in row.items() if isinstance(v, (int, float))} for row in rows]


def test_it_is_given_the_numbers_of_each_round_and_at_the_end_a_table_and_a_picture(runs, noted):
    result = run(DIGITS, runs, "partition.name=dirichlet")
    *rounds, last = noted.logged
    assert rounds == numbers(result.metrics)
    assert (last["round"], last["rounds"].columns[0]) == (3, "round")
    assert [line[0] for line in last["rounds"].data] == [0, 1, 2, 3]
    assert last["overview"].format == "png"
    assert noted.metrics == [("round", {}), ("*", {"step_metric": "round"})]
    assert noted.code == 0


def test_it_is_given_no_events(runs, noted):
    logger = wandb_run.WandbRun(load_config(DIGITS), None, print)
    logger.log({"round": 3, "train/loss": 0.5, "events": ["worker 1 was started again"]})
    assert noted.logged == [{"round": 3, "train/loss": 0.5}]


def test_a_run_that_ends_with_an_error_has_no_table_and_another_exit_code(runs, noted):
    with pytest.raises(NonFinite):
        run(QUADRATICS, runs, "local.lr=1e200")
    assert all("rounds" not in row for row in noted.logged)
    assert noted.code == 1


@pytest.mark.parametrize("takes", [True, False])
def test_a_run_that_the_server_does_not_take_is_begun_again_offline(runs, monkeypatch, takes):
    import wandb

    noted, asked = Noted(), []

    def init(**options):
        asked.append(options)
        if options["mode"] == "online" and not takes:
            raise RuntimeError("no room\nat all")
        return noted

    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setattr(wandb_run, "mode", lambda: "online")
    monkeypatch.setattr(wandb_run, "unreachable", lambda url: None)
    result = run(QUADRATICS, runs)
    assert [options["mode"] for options in asked] == (["online"] if takes else ["online", "offline"])
    first, own = asked[0], ("project", "group", "job_type", "name", "id", "resume", "dir")
    assert [first[key] for key in own] == [
        result.config.logging.project,
        "quadratics",
        "fedavg",
        result.run_dir.name,
        (result.run_dir / "wandb_id.txt").read_text(),
        "allow",
        str(result.run_dir),
    ]
    assert first["config"] == result.config.resolved
    settings = first["settings"]
    assert (settings.base_url, settings.init_timeout) == (wandb_run.base_url(), wandb_run.INIT_SECONDS)
    assert (settings.silent, settings.disable_git, settings.console) == (True, True, "off")
    assert first["reinit"] == "create_new"  # beside a run of the caller's own
    said = "wandb does not take the run (no room): logged offline, `wandb sync` sends it later"
    assert (said in (result.run_dir / "log.txt").read_text()) == (not takes)


def test_a_resumed_run_keeps_its_id(runs, monkeypatch):
    import wandb

    ids = []
    monkeypatch.setattr(wandb, "init", lambda **options: ids.append(options["id"]) or Noted())
    monkeypatch.setattr(wandb_run, "mode", lambda: "offline")
    raylfl.resume(run(QUADRATICS, runs, "rounds=1").run_dir, ["rounds=2"])
    assert ids[0] == ids[1]


def test_an_error_of_an_offline_run_is_not_hidden(runs, monkeypatch):
    import wandb

    def init(**options):
        raise RuntimeError("no disk")

    monkeypatch.setattr(wandb, "init", init)
    monkeypatch.setattr(wandb_run, "mode", lambda: "offline")
    result = run(QUADRATICS, runs)
    assert "logger wandb could not be opened and is left out" in (result.run_dir / "log.txt").read_text()


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
    asked = []

    def urlopen(request, timeout):
        asked.append((request.get_method(), request.full_url, timeout))
        raise error

    monkeypatch.setattr(wandb_run.urllib.request, "urlopen", urlopen)
    assert wandb_run.unreachable("http://wandb.example") == reason
    assert asked == [("HEAD", "http://wandb.example", wandb_run.ANSWER_SECONDS)]


def test_a_picture_has_a_panel_for_each_curve_and_one_for_the_samples(tmp_path):
    rows = [{"round": r, "train/loss": 1.0 / (r + 1), "global/distance": 10.0**-r} for r in range(4)]
    rows[2].pop("global/distance")
    counts = tmp_path / "partition_counts.json"
    assert wandb_run.picture([{"round": 0}], counts) is None
    counts.write_text(json.dumps({"counts": [[3, 0], [1, 2], [0, 5]]}))
    *curves, samples = wandb_run.picture(rows, counts).axes
    assert [(ax.get_title(), ax.get_yscale()) for ax in curves] == [
        ("train/loss", "linear"),
        ("global/distance", "log"),
    ]
    assert [line.get_xdata().tolist() for ax in curves for line in ax.lines] == [[0, 1, 2, 3], [0, 1, 3]]
    assert np.array_equal(samples.images[0].get_array(), [[3, 1, 0], [0, 2, 5]])
    assert samples.get_aspect() == "auto"  # the panel is filled, however many clients there are
    assert [ax.get_title() for ax in wandb_run.picture([{"round": 0}], counts).axes] == ["samples"]


def test_a_wandb_server_that_dies_delays_the_end_for_a_bounded_time(runs, monkeypatch, tmp_path):
    """`finish` never returns: unsent data stay on disk, and a line names the command that sends them."""

    class Stuck:
        dir = str(tmp_path / "wandb" / "run-1" / "files")

        def log(self, row):
            pass

        def define_metric(self, *args, **kwargs):
            pass

        def finish(self, **kwargs):
            time.sleep(3600)

    monkeypatch.setattr(wandb_run.WandbRun, "_begin", lambda self, config, how: Stuck())
    monkeypatch.setattr(wandb_run, "FINISH_SECONDS", 0.2)
    result = run(QUADRATICS, runs)
    assert len(result.metrics) == 6
    said = (result.run_dir / "log.txt").read_text()
    assert f"`wandb sync {tmp_path / 'wandb' / 'run-1'}` sends the rest" in said


def test_the_limits_of_waiting_for_wandb_are_less_than_a_minute_together():
    assert wandb_run.ANSWER_SECONDS + wandb_run.INIT_SECONDS + wandb_run.FINISH_SECONDS < 60


@pytest.mark.parametrize(
    ("chosen", "reason", "expected"),
    [("online", None, "online"), ("online", "refused", "offline"), ("disabled", "refused", "disabled")],
)
def test_a_run_is_logged_offline_where_the_server_does_not_answer(monkeypatch, chosen, reason, expected):
    said, logger = [], object.__new__(wandb_run.WandbRun)
    logger.say = said.append
    monkeypatch.setattr(wandb_run, "mode", lambda: chosen)
    monkeypatch.setattr(wandb_run, "unreachable", lambda url: reason)
    assert logger._mode() == expected
    assert said == ["wandb does not answer (refused): logged offline, `wandb sync` sends it later"] * (
        expected == "offline"
    )


def test_an_error_at_the_end_is_told_with_the_command_that_sends_the_rest(tmp_path):
    class Broken(Noted):
        dir = str(tmp_path / "run-1" / "files")

        def finish(self, exit_code):
            raise RuntimeError

    said, logger = [], object.__new__(wandb_run.WandbRun)
    logger.say, logger.run = said.append, Broken()
    logger._finish(0)
    assert said == [f"wandb could not finish (RuntimeError): `wandb sync {tmp_path / 'run-1'}` sends what is missing"]


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


def test_the_table_at_the_end_has_at_most_a_thousand_rounds_and_the_last():
    columns, lines = wandb_run.rounds_table([{"round": r, "a": r / 2, "events": ["x"]} for r in range(5000)])
    assert columns == ["round", "a"]
    assert len(lines) == 1000
    assert (lines[0], lines[-1]) == ([0, 0.0], [4999, 2499.5])
