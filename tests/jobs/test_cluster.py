"""A real cluster: `ray start --head`, jobs submitted, stopped, and submitted again; with a token, as by default."""

from __future__ import annotations

import csv
import json
import os
import re
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest
import torch

import raylfl
from raylfl.cli import main
from tests.docs.pages import carry_out
from tests.runtime.clusters import PATIENT

ROOT = Path(__file__).resolve().parents[2]
RAY = str(Path(sys.executable).with_name("ray"))


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


@pytest.fixture(scope="module")
def cluster():
    """The environment in which `ray job` reaches a cluster of this test alone."""
    home = Path(tempfile.mkdtemp(prefix="rj"))  # short: Ray puts sockets below it
    (home / "token").write_text(secrets.token_hex(16))
    gcs, dashboard, client, agent, metrics = free_ports(5)
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("RAY_")},
        **PATIENT,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # `ray` and `python`, as pages type them
        "RAY_TMPDIR": str(home),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(home / "token"),
        "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{dashboard}",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAYLFL_RUNS": str(home / "runs"),
    }
    ports = {
        "port": gcs,
        "dashboard-port": dashboard,
        "ray-client-server-port": client,
        "dashboard-agent-listen-port": agent,
        "metrics-export-port": metrics,
        "min-worker-port": 0,
        "max-worker-port": 0,
        "num-cpus": 2,
        "object-store-memory": 100 * 2**20,
    }
    with open(home / "head.log", "w") as log:
        head = subprocess.Popen(
            [RAY, "start", "--head", "--block", *(f"--{k}={v}" for k, v in ports.items())],
            env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        until(lambda: "Ray runtime started" in (home / "head.log").read_text(), 300)
        yield environment
    finally:
        family = psutil.Process(head.pid).children(recursive=True)
        head.terminate()
        _, alive = psutil.wait_procs([*family, psutil.Process(head.pid)], timeout=60)
        for process in alive:
            process.kill()
        head.wait()
        shutil.rmtree(home, ignore_errors=True)


def until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def ray(environment, *arguments, folder=ROOT):
    done = subprocess.run(
        [RAY, "job", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def submit(environment, *command, folder=ROOT, options=()):
    """(exit code, output) of a job submitted from a folder with jobs/ in it."""
    options = ["--working-dir", ".", "--runtime-env", "jobs/runtime_env.yaml", *options]
    return ray(environment, "submit", *options, "--", sys.executable, *command, folder=folder)


OWN_MODEL = """
import os
import time
from dataclasses import dataclass

import torch
from lightning import LightningModule
from raylfl.algorithms.fedprox import FedProx


@dataclass
class Mine(FedProx):
    mu: float = 0.2


class Held(LightningModule):
    def __init__(self, saved: str, gate: str):
        super().__init__()
        self.saved, self.gate = saved, gate
        self.body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))

    def training_step(self, batch, batch_idx):
        while os.path.isdir(self.saved) and not os.path.exists(self.gate):
            time.sleep(0.05)
        x, y = batch
        return torch.nn.functional.cross_entropy(self.body(x), y)
"""


@pytest.fixture
def project(tmp_path):
    """A user's working directory: the job scripts, and a model that waits for its gate file after a checkpoint."""
    shutil.copytree(ROOT / "jobs", tmp_path / "project" / "jobs", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "project" / "mine.py").write_text(OWN_MODEL)
    return tmp_path / "project"


@pytest.mark.timeout(1200)
def test_a_job_is_stopped_with_a_checkpoint_and_submitted_again_ends_with_the_same_bits(cluster, project, monkeypatch):
    run, gate = Path(cluster["RAYLFL_RUNS"]) / "digits" / "a", project.parent / "gate"
    model = {"saved": str(run / "checkpoints" / "round_000020"), "gate": str(gate)}
    settings = [
        "rounds=40",
        "checkpoint.every=20",
        "eval.every=10",
        "eval.inconsistency=false",
        "model.class_path=mine.Held",
        "algorithm.class_path=mine.Mine",
        "algorithm.mu=0.1",
    ]
    settings += [f"model.init_args.{key}={value}" for key, value in model.items()]
    command = ["jobs/run.py", "digits", *settings, "logging.id=a", "runtime.workers=1", "logging.report=false"]
    code, said = submit(cluster, *command, folder=project, options=["--no-wait", "--submission-id", "first"])
    assert code == 0, said
    until((run / "checkpoints" / "round_000020").is_dir, 600)  # the run waits in the round that follows
    stop = subprocess.Popen([RAY, "job", "stop", "first"], env=cluster, stdout=subprocess.PIPE, text=True)
    (log,) = Path(cluster["RAY_TMPDIR"]).glob("ray/session_2*/logs/job-driver-first.log")
    until(lambda: "stopping after this round, with a checkpoint" in log.read_text(), 600)
    gate.touch()
    assert "was stopped" in stop.communicate()[0]
    said = log.read_text()
    assert f"raylfl: stopped before round 21: raylfl resume {run}" in said
    assert (run / "checkpoints" / "round_000021").is_dir()
    assert not (run / "summary.json").exists()
    assert "\r" not in said  # plain lines, no bars
    assert re.search(r"^round \d+/40  train ", said, re.MULTILINE)

    code, said = submit(cluster, *command, folder=project)  # the same command once more
    assert code == 0, said
    assert "succeeded" in said
    assert "resumed at round 21" in (run / "log.txt").read_text()
    assert json.loads((run / "summary.json").read_text())["command"] == shlex.join(command)
    params = torch.load(run / "final.pt", weights_only=True)["params"]
    monkeypatch.syspath_prepend(project)
    place = ["runtime.backend=local", f"logging.dir={project}/here", "logging.report=false"]
    assert torch.equal(params, raylfl.run("digits", [*settings, *place]).params)


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
def test_a_sweep_is_a_job_and_a_mistake_is_a_failed_one(cluster):
    """The working directory is the checkout itself, whose large files are not uploaded."""
    space = ["space.algorithm.name={grid: [fedavg]}", "space.local.lr={grid: [0.1, 0.2]}", "seeds=[0]", "rounds=2"]
    code, said = submit(cluster, "jobs/sweep.py", "digits_lr", *space)
    assert code == 0, said
    assert "[2/2]" in said
    (folder,) = Path(cluster["RAYLFL_RUNS"]).glob("digits_lr-*")
    assert {p.name for p in folder.glob("*-fedavg-s0")} == {"000-fedavg-s0", "001-fedavg-s0"}
    code, said = submit(cluster, "jobs/run.py", "digits", "roundz=5")
    assert code == 1
    assert "exit code 2" in said
    assert "raylfl: unknown key roundz; did you mean rounds?" in said


@pytest.mark.exhaustive
def test_the_tutorial_of_the_cluster_does_what_it_shows(cluster, tmp_path):
    """Its `console` blocks are the fixture's cluster, and a second submission, as the test above has it."""
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs", ignore=shutil.ignore_patterns("__pycache__"))

    def shell(words):
        done = subprocess.run(words, cwd=tmp_path, env=cluster, capture_output=True, text=True, check=False)
        return done.returncode, re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)  # without Ray's colours

    assert carry_out(ROOT / "docs/tutorials/cluster.md", tmp_path, shell, ("sh",)) == 1


PLUG_IN = """
from dataclasses import dataclass
from typing import Annotated

from raylfl.algorithms.fedprox import FedProx
from raylfl.components.options import Doc, Ge


@dataclass
class Sprung(FedProx):
    \"\"\"A spring to the round's model.\"\"\"

    mu: Annotated[float, Ge(0), Doc("the stiffness")] = 0.5
"""
SWEEP = """
base: digits
name: springs
rounds: 3
runtime: { backend: local }
space: { algorithm.mu: { grid: [0.9] } }
algorithm: { name: sprung }
metric: train/loss
"""


@pytest.fixture
def plugged(tmp_path, monkeypatch):
    """A working directory with a plug-in of its own: a file, and the metadata that pip would leave beside it."""
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "springs.py").write_text(PLUG_IN)
    (tmp_path / "springs.yaml").write_text(SWEEP)
    metadata = tmp_path / "springs-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: springs\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[raylfl.algorithms]\nsprung = springs:Sprung\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setenv("RAYLFL_RUNS", "runs")
    return tmp_path


@pytest.mark.exhaustive
def test_a_plug_in_of_a_folder_is_run_compared_killed_resumed_reported_and_swept_in_a_job(
    cluster, plugged, capsys, undrawn
):
    config = ["digits", "rounds=4", "num_clients=8", "runtime.backend=local", "logging.report=false", "eval.every=2"]
    config.append("checkpoint.every=1")
    assert main(["list", "algorithms"]) == 0
    assert "sprung" in capsys.readouterr().out
    assert main(["run", *config, "algorithm=sprung", "logging.id=whole"]) == 0
    assert main(["compare", *config, "-a", "fedavg,sprung", "logging.id=two", "-o", "compared"]) == 0

    (plugged / "kills").write_text("collect:2\n")
    killed = subprocess.run(
        [sys.executable, "-m", "raylfl", "run", *config, "algorithm=sprung", "logging.id=killed"],
        env={**os.environ, "RAYLFL_FAULT": str(plugged / "kills")}, capture_output=True, check=False, timeout=200,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL
    assert main(["resume", "runs/digits/killed"]) == 0
    assert "resumed at round 2" in (plugged / "runs/digits/killed/log.txt").read_text()
    found = [torch.load(f"runs/digits/{name}/final.pt")["params"] for name in ("whole", "killed", "two-sprung")]
    assert all(torch.equal(params, found[0]) for params in found)

    assert main(["report", "runs/digits/two-fedavg", "runs/digits/whole", "-o", "report"]) == 0
    for page in ("report", "compared"):
        assert "sprung" in (plugged / page / "index.html").read_text()

    code, said = submit(cluster, "jobs/sweep.py", "springs.yaml", folder=plugged)
    assert code == 0, said
    assert "[1/1]" in said
    (folder,) = Path(cluster["RAYLFL_RUNS"]).glob("springs-2*")
    with open(folder / "runs.csv") as file:
        assert [row["state"] for row in csv.DictReader(file)] == ["finished"]


@pytest.fixture
def attached(cluster):
    """`attached(*arguments, **variables)`: (exit code, stdout, stderr) of `raylfl` in a process outside the cluster."""
    address = re.search(r"--address='([^']+)'", (Path(cluster["RAY_TMPDIR"]) / "head.log").read_text())[1]

    def call(*arguments, **variables):
        done = subprocess.run(
            [sys.executable, "-m", "raylfl", *arguments],
            cwd=ROOT, env={**cluster, "RAY_ADDRESS": address, **variables}, capture_output=True, text=True,
            check=False, timeout=300,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    call.address = address
    return call


@pytest.mark.parametrize("command", [["run", "digits", "rounds=1", "runtime.workers=1"], ["doctor"]])
def test_another_token_is_named_as_the_reason(attached, command):
    code, out, err = attached(*command, RAY_AUTH_TOKEN=secrets.token_hex(16))
    assert code == (2 if command[0] == "run" else 1)
    (said,) = [line for line in (out + err).splitlines() if line.startswith(("raylfl: RAY", "missing  ray cluster"))]
    refused = "the Ray cluster there refuses this token (InvalidAuthToken): set RAY_AUTH_TOKEN"
    assert f"RAY_ADDRESS={attached.address}: {refused}" in said


def test_doctor_counts_the_nodes_of_a_cluster_that_runs_can_join(attached):
    code, out, _ = attached("doctor")
    assert code == 0
    assert f"runs join {attached.address}: 1 node with 2 CPUs" in out


def test_a_cluster_without_room_refuses_a_run_and_leaves_no_directory(attached, cluster):
    needs = ["runtime.workers=3", "runtime.cpus_per_worker=1", "runtime.wait=0"]
    code, _, err = attached("run", "digits", *needs, "name=crowd")
    assert (code, err.count("\n")) == (2, 1)
    assert "needs 3 x 1 CPUs = 3, but the cluster has 2 CPUs: at most 2 workers fit" in err
    assert not list((Path(cluster["RAYLFL_RUNS"]) / "crowd").iterdir())
