"""Loggers beside metrics.jsonl: their content, also after a resume; and no logger can stop a run."""

from __future__ import annotations

import csv
import json
import os
import socket
import threading
import time
from contextlib import suppress

import pytest
import torch

import raylfl
from raylfl.runtime.records import loggers, wandb_run
from raylfl.runtime.records.run_dir import RunDirectory
from tests.runtime.faults import wait_until
from tests.runtime.test_run import DIGITS, QUADRATICS
from tests.runtime.wandb_records import keyed, records


@pytest.fixture(autouse=True)
def _wandb_ends():
    """wandb's service process, and the variable that names it, end with each test."""
    yield
    import wandb

    wandb.teardown()
    os.environ.pop("WANDB_SERVICE", None)


def run(config, runs, *overrides):
    return raylfl.run(config, [*runs, *overrides])


def ended(folder):
    return any(record.WhichOneof("record_type") == "exit" for record in records(folder))


@pytest.mark.slow
def test_an_offline_run_of_wandb_holds_the_config_the_rounds_a_table_and_a_picture(runs):
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
    (media,) = result.run_dir.glob("wandb/offline-run-*/files/media/table/*.json")
    table = json.loads(media.read_text())
    at = table["columns"].index("test/accuracy")
    assert [line[at] for line in table["data"]] == [row.get("test/accuracy") for row in result.metrics]
    assert list(result.run_dir.glob("wandb/offline-run-*/files/media/images/overview*.png"))


@pytest.mark.slow
def test_a_resumed_run_keeps_its_id(runs):
    result = run(QUADRATICS, runs, "rounds=2", "logging.loggers=[wandb]")
    name = (result.run_dir / "wandb_id.txt").read_text()
    time.sleep(1.1)  # wandb names its folders by the second
    raylfl.resume(result.run_dir, ["rounds=4"])
    folders = list(result.run_dir.glob("wandb/offline-run-*"))
    assert len(folders) == 2
    assert all(folder.name.endswith(name) for folder in folders)


@pytest.fixture
def silent():
    """The port of a loopback server that accepts connections and never answers, and a switch to answer HEAD."""
    answers: list[bytes] = []
    held: list[socket.socket] = []

    def serve():
        with suppress(OSError):
            while True:
                held.append(server.accept()[0])
                if answers and held[-1].recv(4) == b"HEAD":
                    held[-1].sendall(answers[0])

    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(64)
        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1], answers
    for connection in held:
        connection.close()


def logged_in(monkeypatch, port):
    """A user who is logged in to a wandb server at this port."""
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setattr(wandb_run, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(wandb_run, "INIT_SECONDS", 2.0)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["silent", "refusing", "takes no runs"])
def test_a_server_that_cannot_be_reached_costs_seconds_and_not_the_run(runs, monkeypatch, silent, how):
    """The server is silent, refuses connections, or answers and accepts no run: the run continues offline."""
    port, answers = silent
    if how == "refusing":
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            port = unused.getsockname()[1]
    if how == "takes no runs":
        answers.append(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    logged_in(monkeypatch, port)
    result = run(QUADRATICS, runs, "logging.loggers=[wandb]")
    assert torch.equal(result.params, run(QUADRATICS, runs).params)
    (said,) = [line for line in (result.run_dir / "log.txt").read_text().splitlines() if "wandb" in line]
    assert ("wandb does not take the run" if answers else "wandb does not answer") in said
    assert "logged offline, `wandb sync` sends it later" in said
    rows = [keyed(r.history.item) for r in records(result.run_dir) if r.WhichOneof("record_type") == "history"]
    assert [row["round"] for row in rows if "train/loss" in row] == list(range(6))


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
    result = run(QUADRATICS, runs, "logging.loggers=[wandb]")
    assert len(result.metrics) == 6
    said = (result.run_dir / "log.txt").read_text()
    assert f"`wandb sync {tmp_path / 'wandb' / 'run-1'}` sends the rest" in said


def test_the_limits_of_waiting_for_wandb_are_less_than_a_minute_together():
    assert wandb_run.ANSWER_SECONDS + wandb_run.INIT_SECONDS + wandb_run.FINISH_SECONDS < 60


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


@pytest.mark.parametrize(
    ("environment", "netrc", "expected"),
    [
        ({}, "", "offline"),
        ({"WANDB_API_KEY": "x"}, "", "online"),
        ({}, "machine api.wandb.ai login user password x", "online"),
        ({"WANDB_BASE_URL": "http://wandb.example:8080"}, "machine api.wandb.ai login user password x", "offline"),
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
    assert len(lines) == wandb_run.TABLE_ROWS
    assert (lines[0], lines[-1]) == ([0, 0.0], [4999, 2499.5])
