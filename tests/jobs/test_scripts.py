"""The files of jobs, without a cluster."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from raylfl.config.load import load_config
from raylfl.errors import BadConfig

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def uploaded(tmp_path, monkeypatch):
    """A working directory where Ray puts the uploaded folder of a job."""
    folder = tmp_path / "session" / "runtime_resources" / "working_dir_files" / "_ray_pkg_1"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("RAYLFL_RUNS", raising=False)
    return folder


def test_the_runs_of_a_job_are_not_in_its_working_directory_which_ray_deletes(uploaded, monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert load_config("digits").logging.folder == tmp_path / "home" / "raylfl-runs"
    for place in ("runs", ".", str(uploaded / "runs")):
        with pytest.raises(BadConfig, match=r"logging\.dir=.*must be a folder outside the working directory, or a URL"):
            load_config("digits", [f"logging.dir={place}"])
    assert load_config("digits", [f"logging.dir={tmp_path}/runs"]).logging.folder == tmp_path / "runs"
    assert load_config("digits", ["logging.dir=s3://bucket/runs"]).logging.url == "s3://bucket/runs"
    monkeypatch.setenv("RAYLFL_RUNS", str(tmp_path / "shared"))
    assert load_config("digits").logging.folder == tmp_path / "shared"
    monkeypatch.delenv("RAYLFL_RUNS")
    monkeypatch.chdir(tmp_path)
    assert load_config("digits").logging.folder == tmp_path / "runs"


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
        ["bash", ROOT / "jobs" / "slurm.sh", "run", "digits", "--or-resume"],
        env={**job, **{k: str(v) for k, v in places.items()}, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    steps = [line for line in (tmp_path / "log").read_text().splitlines() if not line.startswith("srun")]
    assert steps == ["head", "second node", "2 nodes are there", "-m raylfl run digits --or-resume"]
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
        [sys.executable, "-m", "raylfl", "run", "digits", "logging.id=first", "--or-resume"],
        capture_output=True, text=True, cwd=ROOT, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr == (
        f"raylfl: this Python, {sys.executable}, lacks the package {package}: pip install {package} (or `pip install "
        "-r requirements.txt`), on every node of a cluster; for jobs `pip: requirements.txt` in jobs/runtime_env.yaml\n"
    )


def test_what_is_large_stays_out_of_the_upload():
    """Ray reads `excludes` by the rules of .gitignore."""
    from ray._private.runtime_env.packaging import _get_excludes

    content = yaml.safe_load((ROOT / "jobs" / "runtime_env.yaml").read_text())
    left_out = _get_excludes(ROOT, content["excludes"])

    def travels(path):
        return not any(left_out(p) for p in (ROOT / path, *(ROOT / path).parents) if ROOT in p.parents)

    left = ("data/cifar/x.bin", "runs/a/b/config.yaml", ".git/HEAD", ".venv/bin/python", "raylfl/__pycache__/y.pyc")
    assert [path for path in left if travels(path)] == []
    sent = (
        "raylfl/data/digits.py",
        "conf/digits.yaml",
        "jobs/slurm.sh",
        "raylfl/runtime/records/run_dir.py",
        "mine.py",
    )
    assert [path for path in sent if not travels(path)] == []


def test_the_example_files_parse_and_name_what_exists():
    environment = yaml.safe_load((ROOT / "jobs" / "runtime_env.yaml").read_text())
    assert int(environment["env_vars"]["RAY_JOB_STOP_WAIT_TIME_S"]) >= 60
    cluster = yaml.safe_load((ROOT / "jobs" / "cluster.yaml").read_text())
    assert all("auth_token" in path for path in cluster["file_mounts"])
    assert subprocess.run(["bash", "-n", ROOT / "jobs" / "slurm.sh"], check=False).returncode == 0
