"""A module that shards itself over two processes of a worker trains as one client, like the whole module."""

import os
from contextlib import suppress

import psutil
import pytest
import ray
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

import raylfl
from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.config.load import load_config
from raylfl.errors import BadConfig, RaylflError
from raylfl.experiment.assemble import assemble
from raylfl.runtime.ray.resources import bundle_of, workers_that_fit
from raylfl.runtime.workers.sharded import ShardedModule, make_sharded
from tests.runtime.clusters import QUIET, SMALL, lean_ray
from tests.runtime.faults import alive, log_of, outcome, wait_until
from tests.runtime.measured import rounds_of
from tests.runtime.plain import fedavg
from tests.runtime.sharded_modules import Hooked
from tests.runtime.tiny import OWNED, TINY, Points
from tests.shares import also

WORLD = {
    **TINY,
    "rounds": 3,
    "dtype": "float64",  # results differ by rounding only, some 1e-16
    "data": OWNED["data"],
    "partition": {"name": "natural"},
    "eval": {"every": 1},
}
TWO = "runtime.processes_per_worker=2"
FULL = ["participation.name=full", "link.name=perfect", "local.steps=3", "local.batch_size=full"]


def model(name: str = "Transformer", **init_args: object) -> list[str]:
    settings = [f"model.init_args.{key}={value}" for key, value in init_args.items()]
    return [f"model.class_path=tests.runtime.sharded_modules.{name}", *settings]


def children(word: str = "workers.ranks") -> list[psutil.Process]:
    """The further processes of workers below this process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it ended meanwhile
            found += [process] * (word in " ".join(process.cmdline()))
    return found


def same(result, whole) -> None:
    torch.testing.assert_close(result.params, whole.params, rtol=1e-12, atol=1e-14)
    for row, expected in zip(result.metrics, whole.metrics, strict=True):
        names = [name for name in expected if name.startswith(("train/", "test/", "global/"))]
        assert [row[name] for name in names] == pytest.approx([expected[name] for name in names], rel=1e-12)
    for name, tensor in whole.module.state_dict().items():
        torch.testing.assert_close(result.module.state_dict()[name], tensor, rtol=1e-12, atol=1e-14)


@pytest.mark.exhaustive
@pytest.mark.parametrize("by", ["fully_shard", "parallelize_module"])
@pytest.mark.parametrize("algorithm", ["scaffold", "push_pull", "sfl", "fedaware"])
def test_a_sharded_client_has_the_results_of_a_whole_one(runs, by, algorithm):
    settings = [*runs, *model(by=by), f"algorithm.name={algorithm}"]
    settings += ["participation.name=full", "link.name=perfect"] if algorithm == "push_pull" else []
    sharded = raylfl.run(WORLD, [*settings, TWO])
    same(sharded, raylfl.run(WORLD, settings))
    assert "training_step is sharded over 2 processes" in log_of(sharded.run_dir)
    assert "the model is sharded over 2 processes" in log_of(sharded.run_dir)
    assert not children()


@pytest.mark.parametrize("by", ["fully_shard", also("parallelize_module")])
def test_fedavg_with_sharded_clients_is_a_loop_of_plain_torch(runs, by):
    few = ["rounds=2", "local.steps=2", "eval.every=0", "num_clients=2", "data.init_args.owners=2"]
    result = rounds_of(WORLD, [*FULL, *few, *model(by=by), "algorithm.name=fedavg", TWO])
    start = raylfl.run(WORLD, [*runs, *model(by="nothing"), "rounds=0"])
    points = Points(owners=2)
    batches = [(points.x[shard].double(), points.targets[shard]) for shard in points.client_indices]
    expected = fedavg(start.module.double, start.params, batches, rounds=2, steps=2, lr=0.05)
    torch.testing.assert_close(result.params, expected, rtol=1e-12, atol=1e-14)
    assert not children()


@pytest.mark.exhaustive
@pytest.mark.parametrize("by", ["fully_shard", "parallelize_module"])
def test_random_numbers_buffers_attributes_and_clipping_are_those_of_a_whole_client(runs, by):
    """Dropout, BatchNorm, a counter of steps, momentum, clipping; and the same bits in a second run."""
    settings = [*runs, *model("Counting", by=by), "local.momentum=0.5", "local.clip_norm=0.1", "local.accumulate=2"]
    settings.append("eval.global=true")  # gradients in evaluation mode
    sharded, again = (raylfl.run(WORLD, [*settings, TWO]) for _ in range(2))
    same(sharded, raylfl.run(WORLD, settings))
    assert outcome(sharded.run_dir) == outcome(again.run_dir)
    assert "test/accuracy" in sharded.metrics[-1]


def test_what_cannot_be_sharded_is_refused(runs):
    remedies = {
        "local.optimizer=module cannot be used with": [*model(), "local.optimizer=module"],
        "runtime.compile=eager cannot be used with": [*model(), "runtime.compile=eager"],
        "algorithm.cut \\(split learning\\) cannot": [*model(), "algorithm={name: splitfed, cut: net.blocks.0}"],
    }
    for message, settings in remedies.items():
        with pytest.raises(BadConfig, match=message):
            raylfl.run(WORLD, [*runs, "local.optimizer=sgd", *settings, TWO])
    assert not children()
    with pytest.raises(BadConfig, match="model Hooked overrides on_train_start"):
        ShardedModule(Hooked(), None, None, None, None)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    none = (
        "runtime.processes_per_worker=2, but model Transformer shards none of its parameters: shard them in configure_"
    )
    try:
        with pytest.raises(BadConfig, match=f"{none}model over self.device_mesh"):
            make_sharded(assemble(load_config(WORLD, [*model(by="nothing"), TWO])).setup, "cpu")
    finally:
        dist.destroy_process_group()


@pytest.mark.exhaustive
def test_a_failure_in_all_processes_is_the_clients(runs):
    """Of a model that trains two of its layers."""
    settings = [*runs, *FULL, *model("Raising"), "runtime.on_client_error=drop", "runtime.client_retries=0"]
    settings.append("model.trainable=[net.last,net.blocks.2]")
    sharded, whole = raylfl.run(WORLD, [*settings, TWO]), raylfl.run(WORLD, settings)
    same(sharded, whole)
    assert "a bad point" in log_of(sharded.run_dir)


@pytest.mark.exhaustive
def test_the_loss_of_a_process_ends_a_local_run_which_can_be_resumed(runs, tmp_path):
    settings = [*runs, *model("Mortal", folder=tmp_path), TWO]

    (tmp_path / "armed").touch()
    with pytest.raises(RaylflError, match="the 2 processes of a worker, over which the model is sharded") as error:
        raylfl.run(WORLD, [*settings, "logging.id=first", "checkpoint.every=1"])
    assert "continues it" in " ".join(error.value.__notes__)
    assert not children()
    resumed = raylfl.resume(tmp_path / "runs" / "tiny" / "first")
    assert torch.equal(resumed.params, raylfl.run(WORLD, settings).params)


@pytest.mark.exhaustive
def test_an_actor_is_started_again_with_all_its_processes(runs, tmp_path):
    """Ray's two workers have two processes each, of which one ends itself; no process outlives the run."""
    with lean_ray():
        ray.init("local", num_cpus=2, **SMALL, **QUIET)
    settings = [*runs, *model("Mortal", folder=tmp_path)]
    (tmp_path / "armed").touch()
    try:
        on_ray = ["runtime.backend=ray", "runtime.workers=1", TWO, "rounds=6"]
        lost = raylfl.run(WORLD, [*settings, *on_ray])
        log = log_of(lost.run_dir)
        assert "worker 0 was lost (its process ended" in log
        assert "over which 2 processes shard the model" in log
        assert not (tmp_path / "armed").exists()
        whole = raylfl.run(WORLD, [*settings, "rounds=6"])
        same(lost, whole)
        with pytest.raises(BadConfig, match=r"could not be started: .*shards none of its parameters"):
            raylfl.run(WORLD, [*runs, *model(by="nothing"), *on_ray])
        wait_until(lambda: not children(), "end of the processes", 15)
    finally:
        ray.shutdown()
    pids = {int(path.name.split(".")[1]) for path in tmp_path.glob("pid.*")} - {os.getpid()}
    assert len(pids) >= 4
    assert not alive([psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)])


def test_a_worker_of_two_gpus_needs_both_on_one_node():
    two = RuntimeConfig(gpus_per_worker=2)
    assert (two.processes, bundle_of(two)) == (2, {"CPU": 1.0, "GPU": 2})
    assert workers_that_fit(two, [{"CPU": 9.0, "GPU": 5.0}, {"CPU": 9.0, "GPU": 1.0}]) == 2
    assert RuntimeConfig(processes_per_worker=2).on(8).gpus == 2
    assert RuntimeConfig(processes_per_worker=2).on(1).gpus == 0
    assert RuntimeConfig(processes_per_worker=2).sharing(0.25).gpus == 2
    for settings in ({"gpus_per_worker": 1.5}, {"gpus_per_worker": 2, "processes_per_worker": 3}):
        with pytest.raises(BadConfig):
            RuntimeConfig(**settings)
