"""A real cluster: `ray start --head`, jobs submitted, stopped, and submitted again; with a token, as by default."""

from __future__ import annotations

import os
import re
import secrets
import shutil
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

pytestmark = pytest.mark.cluster  # a minute or two of a real cluster: make test ARGS="-m cluster"

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
    """The environment in which `ray job` reaches a cluster of our own, which nobody else finds by accident."""
    home = Path(tempfile.mkdtemp(prefix="rj"))  # short: Ray puts sockets below it
    (home / "token").write_text(secrets.token_hex(16))
    gcs, dashboard, client, agent, metrics = free_ports(5)
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("RAY_")},
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
        until(lambda: "Ray runtime started" in (home / "head.log").read_text(), 120)
        yield environment
    finally:
        family = psutil.Process(head.pid).children(recursive=True)
        head.terminate()
        _, alive = psutil.wait_procs([*family, psutil.Process(head.pid)], timeout=40)
        for process in alive:
            process.kill()
        head.wait()
        shutil.rmtree(home, ignore_errors=True)


def until(condition, seconds):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def ray(environment, *arguments):
    done = subprocess.run(
        [RAY, "job", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def submit(environment, *command, wait=True):
    """(exit code, output) of a submitted job; without waiting, its id is in the output."""
    options = ["--working-dir", ".", "--runtime-env", "jobs/runtime_env.yaml", *([] if wait else ["--no-wait"])]
    return ray(environment, "submit", *options, "--", sys.executable, *command)


@pytest.mark.timeout(420)
def test_a_job_is_stopped_with_a_checkpoint_and_submitted_again_ends_with_the_same_bits(cluster):
    runs = Path(cluster["RAYLFL_RUNS"])
    settings = ["digits", "rounds=150", "checkpoint.every=20", "eval.every=50", "eval.inconsistency=false"]
    command = ["jobs/run.py", *settings, "logging.id=a", "runtime.workers=1", "logging.report=false"]
    code, said = submit(cluster, *command, wait=False)
    assert code == 0, said
    job = re.search(r"raysubmit_\w+", said).group()
    until(lambda: (runs / "digits" / "a" / "checkpoints" / "round_000020").is_dir(), 120)
    code, said = ray(cluster, "stop", job)
    assert code == 0, said
    assert "STOPPED" in ray(cluster, "status", job)[1].upper()
    log = ray(cluster, "logs", job)[1]
    stopped = int(re.search(r"stopped before round (\d+): raylfl resume", log).group(1))
    assert 20 <= stopped < 150
    assert (runs / "digits" / "a" / "checkpoints" / f"round_{stopped:06d}").is_dir()
    assert not (runs / "digits" / "a" / "summary.json").exists()
    assert "\r" not in log  # plain lines, no bars
    assert re.search(r"^round \d+/150  loss ", log, re.MULTILINE)

    code, said = submit(cluster, *command)  # the same command once more
    assert code == 0, said
    assert "succeeded" in said
    assert f"resumed at round {stopped}" in (runs / "digits" / "a" / "log.txt").read_text()
    params = torch.load(runs / "digits" / "a" / "final.pt", weights_only=True)["params"]
    place = ["runtime.backend=local", f"logging.dir={runs}/here", "logging.report=false"]
    assert torch.equal(params, raylfl.run(settings[0], [*settings[1:], *place]).params)


@pytest.mark.timeout(300)
def test_a_sweep_is_a_job_and_a_mistake_is_a_failed_one(cluster):
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
