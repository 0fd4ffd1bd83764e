"""Sweeps over the nodes of a cluster: trials spread, each with its workers; each node has its own local folder."""

import json
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from types import SimpleNamespace

import pytest
import ray
import torch

from papers.run_cache import CellConfig, RunCache
from raylfl.config.groups.records import LoggingConfig
from raylfl.runtime.records.mirror import local_view
from raylfl.tune.sweep import resume, sweep
from tests.runtime.clusters import QUIET, SMALL, lean_ray
from tests.runtime.faults import wait_until
from tests.tune.sweeps import folder_of, params, plain, write

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    """Two nodes of two CPUs each, with local folders `one` and `two`; this process is on the first."""
    from ray.cluster_utils import Cluster

    home = tmp_path_factory.mktemp("nodes")
    places = {name: {"RAYLFL_STAGING": str(home / name)} for name in ("one", "two")}
    with lean_ray(), pytest.MonkeyPatch.context() as patch:
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "env_vars": places["one"], **SMALL})
        cluster.add_node(num_cpus=2, env_vars=places["two"], object_store_memory=SMALL["object_store_memory"])
        ray.init(address=cluster.address, **QUIET)
        patch.setenv("RAYLFL_STAGING", str(home / "one"))
        yield SimpleNamespace(
            cluster=cluster,
            home=home,
            url=f"file://{home}/far",
            folder=lambda name: home / name / "file" / f"{home}/far"[1:],
        )
        ray.shutdown()
        cluster.shutdown()


def carry_out(tmp_path, url, **changes):
    said: list[str] = []
    return sweep(write(tmp_path, **{"logging": {"dir": url}, **changes}), [], said.append), said


def test_trials_of_two_workers_take_a_node_each_and_lie_together_at_the_url(nodes, tmp_path, monkeypatch):
    ray_workers = {"backend": "ray", "workers": 2, "cpus_per_worker": 1.0}
    result, said = carry_out(tmp_path, nodes.url, rounds=4, runtime=ray_workers, concurrent=2)
    assert "settings at once 2, workers 2 each" in said[0]
    runs = [row.runs[0].id for row in sorted(result.settings, key=lambda row: row.trial.setting)]
    where = {
        trial: [
            name for name in ("one", "two") if (nodes.folder(name) / result.folder.name / trial / "final.pt").exists()
        ]
        for trial in runs
    }
    assert sorted(where.values()) == [["one"], ["two"]]
    far = local_view(f"{nodes.url}/{result.folder.name}", complete=True)
    for trial, lr in zip(runs, (0.1, 0.01), strict=True):
        rows = [json.loads(line) for line in (far / trial / "metrics.jsonl").read_text().splitlines()]
        assert [row["traffic/between_nodes_bytes"] for row in rows] == [0] * 4  # its workers are on its node
        assert torch.equal(params(far / trial), plain(tmp_path, "rounds=4", f"local.lr={lr}").params)
    table = (far / "runs.csv").read_text()
    assert table == (result.folder / "runs.csv").read_text()
    assert table.count("finished") == 2
    monkeypatch.setenv("RAYLFL_STAGING", str(nodes.home / "three"))  # another machine has nothing to do
    again = resume(f"{nodes.url}/{result.folder.name}", say=said.append, trust=True)
    assert [str(group.score) for group in again.settings] == [str(group.score) for group in result.settings]
    assert (again.folder / "runs.csv").read_text() == table


def test_a_trial_whose_node_is_lost_continues_on_another_one(nodes, tmp_path):
    """Three trials fill a node each and wait; the third node is lost once its trial has a checkpoint."""
    third = nodes.cluster.add_node(
        num_cpus=2,
        env_vars={"RAYLFL_STAGING": str(nodes.home / "third")},
        object_store_memory=SMALL["object_store_memory"],
    )
    gate, there = tmp_path / "gate", nodes.folder("third")
    saved = str(there / "lossy" / "*" / "checkpoints" / "round_000004")

    def strike():
        wait_until(lambda: glob(saved), "checkpoint on the third node")
        nodes.cluster.remove_node(third, allow_graceful=False)
        gate.touch()

    model = {"class_path": "tests.tune.modules.Held", "init_args": {"after": saved, "gate": str(gate)}}
    changes = {"rounds": 12, "space": {"local.lr": {"grid": [0.1, 0.01, 0.05]}}, "logging": {"dir": nodes.url}}
    said: list[str] = []
    # every step calls the model, which waits
    one_by_one = {"backend": "local", "cpus_per_worker": 2.0, "step": "autograd", "vectorize": "never"}
    path = write(tmp_path, "lossy", model=model, runtime=one_by_one, **changes)
    with ThreadPoolExecutor(1) as other:
        struck = other.submit(strike)
        result = sweep(path, [], said.append)
        struck.result()
    (line,) = [line for line in said if "tried again from its newest checkpoint" in line]
    assert "failed (its process ended" in line
    far = local_view(f"{nodes.url}/{result.folder.name}", complete=True)
    (name,) = {path.parent.name for path in there.glob("lossy/*/checkpoints")}
    assert "resumed at round" in (far / name / "log.txt").read_text()
    for k, lr in enumerate(changes["space"]["local.lr"]["grid"]):
        twin = plain(tmp_path, "rounds=12", f"local.lr={lr}")
        assert torch.equal(params(far / folder_of(far, k).name), twin.params)


def test_runs_of_a_reproduction_spread_over_the_nodes(nodes, monkeypatch):
    monkeypatch.setenv("RAYLFL_RUNS", nodes.url)
    monkeypatch.setenv("RAY_ADDRESS", ray.get_runtime_context().gcs_address)
    toy = CellConfig("toy", {"base": ["reproduce/sfl_fig1"], "rounds": 4})
    workers = ["runtime.backend=ray", "runtime.workers=2", "runtime.cpus_per_worker=1"]
    cache = RunCache(LoggingConfig().folder / "reproduce/toy", overrides=workers)
    (group,) = cache.groups([toy], [0, 1])
    folders = [nodes.home / name / "file" / f"{nodes.home}/far"[1:] / "reproduce/toy/runs" for name in ("one", "two")]
    assert [len(list(folder.glob("*/final.pt"))) for folder in folders] == [1, 1]
    for run in group.runs:
        assert run.finished
        assert not run.column("traffic/between_nodes_bytes").any()
    monkeypatch.delenv("RAYLFL_RUNS")
    monkeypatch.delenv("RAY_ADDRESS")
    (local,) = RunCache(nodes.home / "plain", overrides=["runtime.backend=local"], jobs=1).groups([toy], [0, 1])
    for one, other in zip(group.runs, local.runs, strict=True):
        assert one.column("global/distance").tolist() == other.column("global/distance").tolist()
