"""The command line as a program: exit codes, mistakes in at most two lines, and the installed command."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.test_cli import RUN

OWN_MODEL = """
import torch
from lightning import LightningModule


class Net(LightningModule):
    def __init__(self, hidden: int = 4):
        super().__init__()
        self.body = torch.nn.Linear(64, hidden)
"""

# -- mistakes --------------------------------------------------------------------------------------------------

USAGE = [
    ((), "COMMAND"),
    (("rnu", "digits"), "invalid choice: 'rnu'"),
    (("run",), "CONFIG"),
    (("run", "digits", "--fast"), "unrecognised: --fast"),
    (("list", "everything"), "invalid choice: 'everything'"),
    (("compare", "digits"), "--algorithms"),
    (("compare", "digits", "-a", ","), "focus,fedavg,sfl"),
]
CONFIGS = [
    (["run", "digitz"], "did you mean digits?"),
    (["run", "digits", "data.name=mnist", "data.init_args.root=nowhere"], "train-images-idx3-ubyte is missing"),
    (["run", "digits", "data.name=cifar100", "data.init_args.root=nowhere"], "data=image_folder reads a copy of"),
    (["run", "digits", "model.class_path=broken.Net"], "importing broken raised"),
    (["partition", "digits", "partition.min_size=100"], "partition.min_size=100, but must be at most 44"),
    (["trace", "digits", "participation.name=uniform", "participation.size=99"], "participation.size=99"),
    (["resume", "runs/nowhere"], "not a run directory"),
    (["sweep", "digits"], "nothing to sweep"),
    (["run", "digits", "--print-config", "data.init_args.root=x"], "unknown key data.init_args.root"),
    (["run", "digits", "--print-config", "data.class_path=mine.Points"], "data.init_args.owners is missing"),
    (["run", "digits", "--print-config", "model.class_path=mine.Points", "model.init_args.x=1"], "model.init_args.x"),
    (["report", "runs/nowhere"], "runs/nowhere"),
    (["run", "digits", "a=1", "b=2", "rounds=x", "local.lr=y"], "rounds=x, but must be a whole number"),
]


def assert_short(err):
    lines = err.splitlines()
    assert 1 <= len(lines) <= 2, err
    assert all(line.startswith("raylfl: ") for line in lines)
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("argv", "words"), [*USAGE, *CONFIGS], ids=lambda value: " ".join(value) if value and value[0] else ""
)
def test_mistakes_are_two_lines_and_exit_code_2(call, fresh, argv, words):
    (fresh / "broken.py").write_text("1 / 0\n")
    (fresh / "mine.py").write_text("class Points:\n    def __init__(self, owners): ...\n")
    code, _, err = call(*argv)
    assert code == 2
    assert words in err
    assert_short(err)
    assert not (fresh / "runs").exists()


@pytest.mark.parametrize("argv", [["run", "digits", "--debug", "rounds=x"], ["--debug", "run", "digits", "rounds=x"]])
def test_debug_shows_where_it_happened(call, argv):
    code, _, err = call(*argv)
    assert code == 2
    assert "Traceback (most recent call last)" in err


def test_a_run_that_fails_ends_with_1_and_the_command_to_resume(call, fresh):
    code, _, err = call(*RUN, "local.lr=1e30", "logging.id=mine")
    assert code == 1
    assert_short(err)
    assert "non-finite" in err
    assert "raylfl resume" in err


def test_an_unforeseen_error_ends_with_1_and_points_to_debug(call, monkeypatch):
    def fails(*args, **kwargs):
        raise KeyError("a bug")

    monkeypatch.setattr("raylfl.cli.listing.list_kind", fails)
    code, _, err = call("list", "models")
    assert code == 1
    assert_short(err)
    assert "KeyError: 'a bug'" in err
    assert "--debug" in err


# -- the installed program ---------------------------------------------------------------------------------------


def program(*argv, **options):
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(argv, capture_output=True, text=True, env=environment, timeout=120, **options)


@pytest.mark.slow
def test_the_installed_command_finds_a_model_in_the_working_directory(tmp_path):
    (tmp_path / "mine.py").write_text(OWN_MODEL)
    own = ["model.class_path=mine.Net", "model.init_args.hidden=3", "--print-config"]  # which imports the class
    done = program(str(Path(sys.executable).with_name("raylfl")), *RUN, *own, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    model = yaml.safe_load(done.stdout)["model"]
    assert (model["class_path"], model["init_args"]) == ("mine.Net", {"hidden": 3})


@pytest.mark.slow
def test_the_module_is_the_same_program_and_a_closed_pipe_is_no_error(tmp_path):
    done = program("bash", "-c", f"{sys.executable} -m raylfl list | head -n 1", cwd=tmp_path)
    assert done.stdout == "algorithms\n"
    assert done.stderr == ""
    wrong = program(sys.executable, "-m", "raylfl", "run", "digitz", cwd=tmp_path)
    assert wrong.returncode == 2
    assert_short(wrong.stderr)


OWN_METHODS = """
from dataclasses import dataclass
from raylfl.algorithms.fedavg import FedAvg


@dataclass
class Misnamed(FedAvg):
    def server_step_from_sums(self, server, sums, r):
        return {"x": server["x"] - sums["delta"]}, {}


@dataclass
class OneRow(FedAvg):
    def direction(self, x, g, carry):
        return g.mean(0), carry


@dataclass
class Lost(FedAvg):
    def finish(self, x, carry, client_state, work):
        return {"update": carry["x_start"] - x}, {"c": x}
"""


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("Misnamed", 1, "KeyError: 'delta'\nraylfl: raised at methods.py:9, in server_step_from_sums; "),
        ("OneRow", 2, "OneRow.direction returned ([4810] float32, {x_start: "),
        ("Lost", 2, "Lost.finish returned the client states {c: ["),
    ],
)
def test_a_mistake_in_a_method_of_your_own_names_the_method(call, fresh, name, code, says):
    (fresh / "methods.py").write_text(OWN_METHODS)
    returned, _, err = call(*RUN, f"algorithm=methods.{name}", "participation=full")
    assert (returned, says in err, len(err.splitlines()) <= 2) == (code, True, True), err
