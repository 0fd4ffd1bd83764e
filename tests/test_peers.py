"""Benchmarks: all sides of peers have one workload, and its page is computed; the libraries of test-matrix."""

import json
import tomllib
from dataclasses import replace

import pytest
import torch
from torch import nn

from benchmarks.matrix import ROWS, at_lower_bound, requirements
from benchmarks.pages import MEASUREMENTS, ROOT
from benchmarks.peers import command, data, limit
from benchmarks.peers.definitions import DEFINITIONS
from benchmarks.peers.job import Job
from benchmarks.peers.networks import NETWORKS
from benchmarks.peers.page import page
from benchmarks.peers.sides import plain
from benchmarks.peers.sides import raylfl as ours
from raylfl.components.registry import import_class
from raylfl.config.load import load_config

PARAMETERS = {"pfl": 1_626_442, "blaze": 62_006, "flute": 7_850}  # as published
STEPS = {"pfl": 5, "blaze": 50, "flute": 6}
ALL = pytest.mark.parametrize("workload", DEFINITIONS.values(), ids=lambda w: w.name)


@ALL
def test_a_workload_is_the_published_one_in_raylfl_and_in_the_arrays_of_the_others(workload):
    network, module = NETWORKS[workload.name](), import_class(workload.model, "model")()
    counts = {sum(p.numel() for p in m.parameters()) for m in (network, module)}
    assert counts == {PARAMETERS[workload.name]}
    assert [str(layer) for layer in module.net] == [str(layer) for layer in network]
    config = load_config(workload.run_config({"name": "mnist"}, workload.rounds, 2))
    assert (config.local.lr, config.local.epochs, config.local.batch_size) == (
        *(workload.lr, workload.epochs, workload.batch_size),
    )
    per_client = workload.samples // workload.clients
    assert workload.epochs * per_client / workload.batch_size == workload.steps == STEPS[workload.name]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A job of the plain loop and of raylfl: six clients, three steps on all of a client's 20 images, two rounds."""
    monkeypatch.setenv("RAYLFL_DATA", str(tmp_path / "nothing"))
    small = {"samples": 120, "clients": 6, "cohort": 6, "batch_size": 20, "steps": 3, "epochs": 3, "lr": 0.3}
    workload = replace(DEFINITIONS["flute"], **small)
    assert "not comparable" in data.prepare(workload, tmp_path / "data")
    return lambda name: Job(workload, tmp_path / "data", 2, 1, tmp_path / name)


def test_the_plain_loop_and_raylfl_train_the_same_model(run):
    model = import_class(DEFINITIONS["flute"].model, "model")()
    model.net = run("weights").network()
    threads = torch.get_num_threads()
    expected = nn.utils.parameters_to_vector(plain.train(run("plain")).parameters())
    torch.set_num_threads(threads)
    result = ours.train(run("ours"), model=model)
    torch.testing.assert_close(result.params, expected.detach(), rtol=1e-5, atol=1e-6)
    start = nn.utils.parameters_to_vector(run("weights").network().parameters())
    assert float((expected - start).detach().norm()) > 0.1  # far more than the tolerance
    reports = [[json.loads(line) for line in run(name).out.read_text().splitlines()] for name in ("plain", "ours")]
    for lines in reports:
        assert [line["round"] for line in lines] == [1, 2]
    assert reports[0][-1]["accuracy"] == pytest.approx(reports[1][-1]["accuracy"], abs=1e-3)


@ALL
def test_the_limit_counts_the_products_of_a_round(workload, monkeypatch):
    """By hand, in multiply-adds: three products a layer and sample, two where the input needs no gradient."""
    layers = {
        "pfl": (2 * 30 * 30 * 32 * 27, 3 * 28 * 28 * 64 * 288, 3 * 12_544 * 128, 3 * 1280),
        "blaze": (2 * 28 * 28 * 6 * 75, 3 * 100 * 16 * 150, 3 * 400 * 120, 3 * 120 * 84, 3 * 840),
        "flute": (2 * 7840,),
    }[workload.name]
    monkeypatch.setattr(limit, "fastest", lambda call: 0.01)
    found = limit.limits(workload, 1)
    samples = workload.cohort * workload.steps * workload.batch_size
    assert found["arithmetic"] * found["gflops"] * 1e9 == pytest.approx(2 * samples * sum(layers), rel=1e-6)


def test_a_side_without_its_release_has_a_row_with_the_reason(tmp_path):
    reason = command.measure("pfl", 1, DEFINITIONS["pfl"], 2, tmp_path, tmp_path, 1)
    assert "not installed" in reason
    assert "--setup" in reason


def test_the_page_is_what_the_results_file_says():
    text = page(json.loads(command.RESULTS.read_text()))
    assert text in MEASUREMENTS.read_text()


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(
    ("requirement", "oldest"),
    [
        ("numpy>=2", "numpy==2.0.*"),
        ("torch>=2.9", "torch==2.9.*"),
        ("ray[default,tune]>=2.50", "ray[default,tune]==2.50.*"),
        ("fsspec>=2024.10", "fsspec==2024.10.*"),
    ],
)
def test_a_lower_bound_is_the_oldest_version(requirement, oldest):
    assert at_lower_bound(requirement) == oldest


def test_every_row_has_a_supported_python_and_the_oldest_libraries_at_their_lower_bounds():
    oldest = requirements(oldest=True)
    assert {at_lower_bound(line) for line in PROJECT["dependencies"]} <= set(oldest)
    assert not [line for line in oldest if line.startswith(("torch", "ray", "lightning", "wandb")) and ">=" in line]
    assert len(oldest) == len(requirements(oldest=False))
    least = PROJECT["requires-python"].removeprefix(">=")
    assert min(tuple(map(int, row.python.split("."))) for row in ROWS) == tuple(map(int, least.split(".")))
