"""Loggers beside metrics.jsonl: their content, also after a resume; and no logger can stop a run."""

from __future__ import annotations

import csv
import json
import os
import socket
import threading
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
@pytest.mark.parametrize("how", ["silent", "takes no runs"])
def test_a_server_that_cannot_be_reached_costs_seconds_and_not_the_run(runs, monkeypatch, silent, how):
    """The server is silent, or answers and accepts no run: the run continues offline."""
    port, answers = silent
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
