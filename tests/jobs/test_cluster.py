"""A real cluster: `ray start --head`, jobs submitted, stopped, and submitted again; with a token, as by default."""

import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

import raylfl
from raylfl.cli.doctor import free_ports
from tests.docs.pages import carry_out
from tests.runtime.clusters import PATIENT
from tests.runtime.faults import end, wait_until
from tests.test_cli import TIME

ROOT = Path(__file__).resolve().parents[2]
RAY = str(Path(sys.executable).with_name("ray"))


@pytest.fixture(scope="module")
def cluster():
    """The environment in which `ray job` reaches a cluster of this test alone, of two nodes with a CPU each."""
    home = Path(tempfile.mkdtemp(prefix="rj"))  # short: Ray puts sockets below it
    (home / "token").write_text(secrets.token_hex(16))
    gcs, dashboard, *others = free_ports(7)
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("RAY_")},
        **PATIENT,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",  # `ray` and `python`, as pages type them
        "RAY_TMPDIR": str(home),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(home / "token"),
        "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{dashboard}",
        "RAY_USAGE_STATS_ENABLED": "0",
        "HOME": str(home),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")),
    }
    environment.pop("RAYLFL_RUNS", None)  # so that jobs use their default, a folder in HOME
    head = {"port": gcs, "dashboard-port": dashboard, "ray-client-server-port": others.pop(), "num-cpus": 1}
    nodes = [node(home / "0.log", environment, others, head)]
    try:
        # in a folder of its own: a node unpacks a job's files again where another has done so
        joins = {"address": f"127.0.0.1:{gcs}", "num-cpus": 1, "temp-dir": home / "1"}
        nodes.append(node(home / "1.log", environment, others, joins))
        yield {**environment, "RAYLFL_RUNS": str(home / "raylfl-runs")}
    finally:
        end(nodes)
        shutil.rmtree(home, ignore_errors=True)


def node(log, environment, ports, options):
    """A node of the cluster that has started: a process of `ray start`, with two of these free ports."""
    options = {
        **options,
        "dashboard-agent-listen-port": ports.pop(),
        "metrics-export-port": ports.pop(),
        "min-worker-port": 0,
        "max-worker-port": 0,
        "object-store-memory": 100 * 2**20,
    }
    head = ["--head"] * ("address" not in options)
    with open(log, "w") as file:
        started = subprocess.Popen(
            [RAY, "start", *head, "--block", *(f"--{k}={v}" for k, v in options.items())],
            env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    wait_until(lambda: "Ray runtime started" in log.read_text() or started.poll() is not None, "Ray", 300)
    assert started.poll() is None, log.read_text()
    return started


def ray(environment, *arguments, folder=ROOT):
    done = subprocess.run(
        [RAY, "job", *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout + done.stderr


def submit(environment, *command, folder=ROOT, options=()):
    """(exit code, output) of a job submitted from a folder with jobs/ in it."""
    options = ["--working-dir", ".", "--runtime-env", "jobs/runtime_env.yaml", *options]
    return ray(environment, "submit", *options, "--", sys.executable, "-m", "raylfl", *command, folder=folder)


def log_of(environment, job):
    """What a job has printed so far."""
    logs = Path(environment["RAY_TMPDIR"]).glob(f"ray/session_2*/logs/job-driver-{job}.log")
    return "".join(log.read_text() for log in logs)


@pytest.mark.timeout(1200)
def test_the_tutorial_leads_from_a_folder_to_a_job_that_continues_after_a_stop(cluster, tmp_path, monkeypatch):
    """Its `console` blocks are the fixture's cluster. The stopped run has the bits of an undisturbed one.

    After the stop 50 rounds are left of the 1000, from which the run could not have ended before the stop.
    """
    run, job = Path(cluster["RAYLFL_RUNS"]) / "digits" / "first", f"one-{secrets.token_hex(4)}"
    shutil.rmtree(run, ignore_errors=True)  # of an earlier attempt

    def shell(words):
        words = [job if word == "one" else word for word in words]
        if words[:3] == ["ray", "job", "logs"]:  # the reader waits for the first rounds
            wait_until(lambda: " round " in log_of(cluster, job), "first rounds", 600)
        done = subprocess.run(words, cwd=tmp_path, env=cluster, capture_output=True, text=True, check=False)
        if words[:3] == ["ray", "job", "stop"]:
            assert not (run / "summary.json").exists()
            said.append(log_of(cluster, job))
            (stop,) = re.findall(rf"raylfl: stopped before round (\d+): raylfl resume {run}", said[0])
            left.append(str(min(int(stop) + 50, 1000)))
            for file in (tmp_path / "mine.yaml", run / "config.yaml"):
                file.write_text(file.read_text().replace("rounds: 1000", f"rounds: {left[0]}"))
        text = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)  # without Ray's colours
        return done.returncode, re.sub(rf"\b{left[0]}\b", "1000", text) if left else text

    said, left = [], []
    assert carry_out(ROOT / "docs/tutorials/cluster.md", tmp_path, shell, ("sh",)) == 2
    assert "\r" not in said[0]  # plain lines, no bars
    assert re.search(rf"^{TIME} round \d+/1000  train ", said[0], re.MULTILINE)
    stop = re.search(r"stopped before round (\d+)", said[0])[1]
    assert f"resumed at round {stop}" in (run / "log.txt").read_text()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    place = ["runtime.backend=local", f"logging.dir={tmp_path}/here", "logging.report=false"]
    params = torch.load(run / "final.pt", weights_only=True)["params"]
    assert torch.equal(params, raylfl.run("mine.yaml", place).params)


@pytest.mark.exhaustive
@pytest.mark.timeout(1200)
def test_a_sweep_is_a_job_and_a_mistake_is_a_failed_one(cluster):
    """The working directory is the checkout itself, whose large files are not uploaded."""
    space = ["space.algorithm.name={grid: [fedavg]}", "space.local.lr={grid: [0.1, 0.2]}", "seeds=[0]", "rounds=2"]
    code, said = submit(cluster, "sweep", "digits_lr", *space)
    assert code == 0, said
    assert "[2/2]" in said
    assert len(list(Path(cluster["RAYLFL_RUNS"]).glob("digits_lr/fedavg-s0-*/summary.json"))) == 2
    code, said = submit(cluster, "run", "digits", "roundz=5")
    assert code == 1
    assert "exit code 2" in said
    assert "raylfl: unknown key roundz; did you mean rounds?" in said


@pytest.fixture
def attached(cluster):
    """`attached(*arguments, **variables)`: (exit code, stdout, stderr) of `raylfl` in a process outside the cluster."""
    address = re.search(r"--address='([^']+)'", (Path(cluster["RAY_TMPDIR"]) / "0.log").read_text())[1]

    def call(*arguments, **variables):
        done = subprocess.run(
            [sys.executable, "-m", "raylfl", *arguments],
            cwd=ROOT, env={**cluster, "RAY_ADDRESS": address, **variables}, capture_output=True, text=True,
            check=False, timeout=300,
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    call.address = address
    return call


def test_doctor_counts_the_nodes_of_a_cluster_that_runs_can_join(attached):
    code, out, _ = attached("doctor")
    assert code == 0
    assert f"runs join {attached.address}: 2 nodes with 2 CPUs" in out
