"""The job scripts and their files, without a cluster."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run_script(monkeypatch):
    """jobs/run.py as a module."""
    monkeypatch.setenv("RAYLFL_RUNS", os.environ.get("RAYLFL_RUNS", "runs"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    spec = importlib.util.spec_from_file_location("run_script", ROOT / "jobs" / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_existing_run_is_resumed(run_script, tmp_path):
    arguments = ["digits", "logging.id=a", f"logging.dir={tmp_path}", "rounds=9"]
    assert run_script.command(arguments) == ["run", *arguments]
    folder = tmp_path / "digits" / "a"
    folder.mkdir(parents=True)
    (folder / "config.yaml").touch()
    assert run_script.command(arguments) == ["resume", str(folder), *arguments[1:]]
    assert run_script.command(["digits", "rounds=9"]) == ["run", "digits", "rounds=9"]
    assert run_script.command(["--resume", "x", "rounds=9"]) == ["resume", "x", "rounds=9"]


@pytest.mark.parametrize(
    ("script", "arguments", "words"),
    [
        ("run.py", ["digits", "logging.id=a", "roundz=5"], "unknown key roundz; did you mean rounds?"),
        ("sweep.py", ["digits_lr", "roundz=5"], "unknown key roundz; did you mean rounds?"),
        ("reproduce.py", ["focus/fig44"], "no experiment focus/fig44; did you mean focus/fig4?"),
    ],
)
def test_a_mistake_ends_a_job_with_code_2_and_one_line(script, arguments, words, tmp_path):
    """From any working directory: the scripts find the raylfl beside them."""
    environment = {**os.environ, "RAYLFL_RUNS": str(tmp_path / "runs"), "PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, ROOT / "jobs" / script, *arguments],
        capture_output=True, text=True, cwd=ROOT, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == f"raylfl: {words}\n"
    assert done.stdout == ""
    assert not (tmp_path / "runs").exists()


STUBS = {  # commands of a Slurm node; `ray start` blocks, and fails on a second node before the head is up
    "scontrol": "printf 'one\\ntwo\\n'",
    "srun": 'echo "srun $*" >> "$LOG"; while [[ $1 == -* ]]; do [[ $1 == -w ]] && shift; shift; done; exec "$@"',
    "ray": """case "$*" in
        start*--head*) sleep 1; touch "$UP"; echo "head" >> "$LOG"; exec sleep 60;;
        start*) [ -e "$UP" ] || exit 1; echo "second node" >> "$LOG"; touch "$UP.2"; exec sleep 60;;
        status) [ -e "$UP" ];;
    esac""",
    "python": """if [ "$1" = -c ]; then
        for _ in $(seq 100); do [ -e "$UP.$3" ] && break; sleep 0.1; done
        echo "$3 nodes are there" >> "$LOG"
    else echo "$*" >> "$LOG"; exit 3; fi""",
}


def test_the_slurm_job_starts_its_run_when_all_nodes_have_joined_with_all_their_cpus(tmp_path):
    for name, text in STUBS.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("t")
    job = {"SLURM_SUBMIT_DIR": ".", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_ID": "7", "SLURM_CPUS_PER_TASK": "16"}
    places = {"LOG": tmp_path / "log", "UP": tmp_path / "up", "HOME": tmp_path}
    done = subprocess.run(
        ["bash", ROOT / "jobs" / "slurm.sh", "digits", "rounds=5"],
        env={**job, **{k: str(v) for k, v in places.items()}, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    steps = [line for line in (tmp_path / "log").read_text().splitlines() if not line.startswith("srun")]
    assert steps == ["head", "second node", "2 nodes are there", "jobs/run.py digits rounds=5"]
    asked = [line for line in (tmp_path / "log").read_text().splitlines() if line.startswith("srun")]
    assert [line.split(" ray ")[0] for line in asked] == [
        f"srun --nodes=1 --ntasks=1 --cpus-per-task=16 -w {node}" for node in ("one", "two")
    ]
    assert (done.returncode, done.stderr) == (3, "")  # that of the run


@pytest.mark.parametrize("package", ["torch", "omegaconf"])
def test_a_job_whose_python_lacks_a_package_says_which_python_and_the_remedy(tmp_path, package):
    stub = tmp_path / "site"
    stub.mkdir()
    content = f"""raise ModuleNotFoundError("No module named '{package}'", name="{package}")"""
    (stub / f"{package}.py").write_text(content)
    environment = {**os.environ, "RAYLFL_RUNS": str(tmp_path / "runs"), "PYTHONPATH": f"{stub}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, ROOT / "jobs" / "run.py", "digits", "logging.id=first"],
        capture_output=True, text=True, cwd=ROOT, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        f"raylfl: this Python, {sys.executable}, lacks the package {package}: pip install raylfl (or `pip install -r "
        "requirements.txt`), on every node of a cluster; for jobs `pip: requirements.txt` in jobs/runtime_env.yaml\n"
    )


def test_what_is_large_stays_out_of_the_upload():
    """Ray reads `excludes` by the rules of .gitignore."""
    from ray._private.runtime_env.packaging import _get_excludes

    content = yaml.safe_load((ROOT / "jobs" / "runtime_env.yaml").read_text())
    left_out = _get_excludes(ROOT, content["excludes"])

    def travels(path):
        return not any(left_out(p) for p in (ROOT / path, *(ROOT / path).parents) if ROOT in p.parents)

    for path in (
        "data/cifar/x.bin",
        "runs/a/b/config.yaml",
        ".git/HEAD",
        ".venv/bin/python",
        "raylfl/__pycache__/y.pyc",
    ):
        assert not travels(path), path
    for path in (
        "raylfl/data/digits.py",
        "conf/digits.yaml",
        "jobs/run.py",
        "raylfl/runtime/records/run_dir.py",
        "mine.py",
    ):
        assert travels(path), path


def test_the_example_files_parse_and_name_what_exists():
    environment = yaml.safe_load((ROOT / "jobs" / "runtime_env.yaml").read_text())
    assert int(environment["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"]) >= 60
    cluster = yaml.safe_load((ROOT / "jobs" / "cluster.yaml").read_text())
    assert all("auth_token" in path for path in cluster["file_mounts"])
    assert subprocess.run(["bash", "-n", ROOT / "jobs" / "slurm.sh"], check=False).returncode == 0
