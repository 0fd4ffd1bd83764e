"""Samples that are read by index: for the round's clients alone, from arrays larger than memory, or from nodes."""

import json
import pickle
import sys
import weakref

import numpy as np
import psutil
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

import raylfl
from raylfl.config.groups.runtime import RuntimeConfig
from raylfl.config.load import load_config
from raylfl.core.placement import Placement
from raylfl.core.samples import BatchSource, SampleSet
from raylfl.data import client_files
from raylfl.data.by_index import ClientArrays, MappedArrays
from raylfl.errors import BadConfig, DataMissing
from raylfl.experiment.assemble import assemble, assigns_clients
from raylfl.runtime.check import check
from raylfl.runtime.ray.resources import names_of_nodes
from raylfl.runtime.ray.stored import indices_of
from tests.runtime.tiny import TINY, Points

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path):
    """The points of the tiny problem as .npy files, ten consecutive points per client."""
    points = Points()
    np.save(tmp_path / "train_x.npy", points.x.numpy())
    np.save(tmp_path / "train_y.npy", points.targets.numpy())
    np.save(tmp_path / "test_x.npy", points.x[::3].numpy())
    np.save(tmp_path / "test_y.npy", points.targets[::3].numpy())
    np.save(tmp_path / "train_client.npy", np.arange(60) // 10)
    return tmp_path


def npy(folder, **more):
    return {**TINY, "data": {"name": "npy", "init_args": {"path": str(folder)}}, **more}


def test_arrays_in_files_give_the_bits_of_arrays_in_memory(folder, runs):
    ours = raylfl.run(npy(folder), runs)
    memory = raylfl.run(TINY, [*runs, "runtime.vectorize=never"])
    assert torch.equal(ours.params, memory.params)
    assert [row["test/loss"] for row in ours.metrics if "test/loss" in row] == [
        row["test/loss"] for row in memory.metrics if "test/loss" in row
    ]


class Pooled(LightningModule):
    """A model of a megabyte's mean and largest value."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 3)

    def training_step(self, batch, batch_idx):
        x, y = batch
        flat = x.flatten(1).float()
        return nn.functional.cross_entropy(self.head(torch.stack([flat.mean(1), flat.amax(1)], 1)), y)


def test_a_data_set_larger_than_memory_trains(tmp_path, runs, monkeypatch):
    """A sparse file of more bytes than this machine has; only samples of the rounds' clients are read, and two more."""
    count = 2 * psutil.virtual_memory().total // 2**20
    x = np.lib.format.open_memmap(tmp_path / "train_x.npy", "w+", np.uint8, (count, 2**10, 2**10))
    x[:2], nbytes = 7, x.nbytes
    del x
    np.save(tmp_path / "train_y.npy", np.arange(count) % 3)
    seen: set[int] = set()
    rows = MappedArrays.rows
    monkeypatch.setattr(MappedArrays, "rows", lambda self, at: seen.update(at.tolist()) or rows(self, at))
    model = {"class_path": "tests.data.test_by_index.Pooled"}
    config = npy(tmp_path, model=model, num_clients=100, rounds=2, partition={"name": "iid"}, eval={"every": 0})
    result = raylfl.run(config, [*runs, "link.name=perfect", "local.steps=2"])
    split = assemble(load_config(config)).split.clients
    cohorts = {
        c
        for line in (result.run_dir / "participation.jsonl").read_text().splitlines()
        for c in json.loads(line).get("cohort", [])
    }
    assert nbytes > psutil.virtual_memory().total
    probe = 2 * 2 * 16  # samples of the probe steps before the run: two batches of each of two clients
    assert 0 < len(seen) <= 2 * 3 * 2 * 4 + probe
    assert seen <= {int(k) for c in {*cohorts, 0, 1} for k in split[c]}


def test_a_pickled_copy_of_mapped_arrays_is_their_paths(folder):
    arrays = MappedArrays([folder / "train_x.npy", folder / "train_y.npy"])
    assert len(arrays) == 60
    assert len(pickle.dumps(arrays)) < 500
    at = np.array([7, 3, 7])
    x, y = pickle.loads(pickle.dumps(arrays)).rows(at)
    assert (x.tolist(), y.tolist()) == (Points().x[at].tolist(), Points().targets[at].tolist())
    np.save(folder / "train_y.npy", np.zeros(3))
    with pytest.raises(DataMissing, match=r"have different numbers of samples: \[3, 60\]"):
        len(pickle.loads(pickle.dumps(arrays)))
    with pytest.raises(DataMissing, match=r"nowhere.npy cannot be read as an array .* on this node"):
        len(MappedArrays([folder / "nowhere.npy"]))


# -- parts of a data set ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["arrays", "items", "by index"])
def test_a_part_keeps_the_numbers_of_its_samples_and_refuses_others(folder, kind):
    points = Points()
    whole = {
        "arrays": lambda: SampleSet.of(points.train_dataset()),
        "items": lambda: SampleSet(None, [*zip(points.x, points.targets, strict=True)]),
        "by index": lambda: SampleSet.of(MappedArrays([folder / "train_x.npy", folder / "train_y.npy"])),
    }[kind]()
    part = BatchSource(whole.part(np.array([3, 8, 50])), CPU, torch.float32)
    x, y = part.batch(np.array([50, 3])).content
    assert (x.tolist(), y.tolist()) == (points.x[[50, 3]].tolist(), points.targets[[50, 3]].tolist())
    for foreign in (0, 9, 59):
        with pytest.raises(LookupError, match="from a worker that does not hold it"):
            part.gather(np.array([3, foreign]))


def test_a_worker_has_the_samples_of_its_clients_and_nothing_else():
    setup = assemble(load_config({**TINY, "num_clients": 5}, ["runtime.backend=ray", "runtime.placement=pinned"])).setup
    placement = Placement.pinned(setup.population.sizes, 3)
    parts = [setup.train.part(indices_of(setup, placement, w)) for w in range(3)]
    assert sorted(k for part in parts for k in part.owned.tolist()) == sorted(setup.shards.indices.tolist())
    for w, part in enumerate(parts):
        assert {int(k) for c in placement.clients(w) for k in setup.shards[int(c)]} == set(part.owned.tolist())
        assert [len(a) for a in part.arrays] == [len(part.owned)] * 2
    beyond = indices_of(setup, Placement.pinned(setup.population.sizes, 7), 6)
    assert beyond.tolist() == setup.shards.indices[:2].tolist()


@pytest.mark.parametrize("most", [1, 100, 250, 10**9])
def test_samples_are_dealt_in_pieces_and_joined_again(most):
    """Only one piece is in memory at a time, on either side."""
    points, indices = Points(), np.array([0, 3, 8, 9, 33, 50, 59])
    whole = SampleSet.of(points.train_dataset())
    row, alive = 4 * 4 + 8, []

    def pieces():
        for piece in whole.pieces(indices, most):
            assert piece.nbytes <= max(most, row)
            alive[:] = [reference for reference in alive if reference() is not None]
            assert len(alive) <= 1  # the one before, which the caller still has
            alive.append(weakref.ref(piece))
            yield piece

    joined, direct = SampleSet.joined(pieces(), len(indices)), whole.part(indices)
    assert joined.owned.tolist() == indices.tolist()
    assert all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in zip(joined.arrays, direct.arrays, strict=True))
    assert len(list(whole.pieces(indices, most))) == -(-len(indices) // max(1, most // row))


# -- the rule of runtime.placement -------------------------------------------------------------------------------------


def test_auto_pins_data_that_are_read_by_index_and_nothing_else():
    auto = RuntimeConfig()
    assert assigns_clients(auto, by_index=True, apart=False, impossible=None)
    assert assigns_clients(auto, by_index=True, apart=True, impossible=None)
    assert not assigns_clients(auto, by_index=False, apart=False, impossible=None)
    assert not assigns_clients(auto, by_index=True, apart=False, impossible="one client")
    assert not assigns_clients(RuntimeConfig(placement="shared"), by_index=True, apart=False, impossible=None)
    assert assigns_clients(RuntimeConfig(placement="pinned"), by_index=False, apart=False, impossible=None)


ONE_BY_ONE = "runtime.vectorize=never"
SMALL = ["data={name: synthetic_images, init_args: {num_train: 60, num_test: 6}}", "model=cnn_fedacs_mnist"]
LARGE = ["data={name: synthetic_images, init_args: {shape: [3, 32, 32], num_train: 12, num_test: 6}}", "model=vgg9"]


@pytest.mark.parametrize(
    ("overrides", "workers", "nodes", "gpus", "expected"),
    [
        ([ONE_BY_ONE], 6, 1, 0, True),  # as many workers as clients
        ([ONE_BY_ONE], 5, 1, 0, False),
        ([ONE_BY_ONE], 5, 2, 0, True),  # more than one node
        ([ONE_BY_ONE], 6, 1, 1, True),
        ([ONE_BY_ONE], 5, 2, 1, False),  # fewer GPUs run clients side by side
        ([], 6, 2, 0, False),  # vectorised, and assigned clients have other bits
        (SMALL, 6, 1, 0, True),  # convolutions run one by one on a CPU, small ones in one call on a GPU
        (SMALL, 6, 1, 1, False),
        (LARGE, 6, 1, 1, True),
        (["algorithm=sfl"], 6, 1, 0, True),
        (["algorithm=sfl"], 6, 1, 1, False),
        ([ONE_BY_ONE, "runtime.placement=shared"], 6, 2, 0, False),
        ([ONE_BY_ONE, "eval.participants=true"], 6, 2, 0, False),  # whose batches would be others
        ([ONE_BY_ONE, "algorithm=dsgd"], 6, 2, 0, False),
        ([ONE_BY_ONE, "algorithm=centralized"], 6, 2, 0, False),
        ([ONE_BY_ONE, "data.class_path=tests.data.test_by_index.Listed"], 6, 2, 0, False),
    ],
)
def test_auto_pins_where_workers_or_nodes_suffice_and_no_bit_changes(overrides, workers, nodes, gpus, expected):
    experiment = check(assemble(load_config(TINY, ["runtime.backend=ray", "runtime.workers=1", *overrides])))
    assert experiment.on(gpus).placed(workers, nodes).setup.assigned == expected


class Listed(Points):
    """The points as samples that must be read one by one."""

    def train_dataset(self):
        return list(zip(self.x, self.targets, strict=True))


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["algorithm.name=centralized"], "a single client trains on all data: use auto or shared"),
        (["algorithm.name=dsgd"], "the nodes of a graph work in blocks, .*: use auto or shared"),
        (["runtime.vectorize=always"], "runs clients one by one: runtime.vectorize must be auto or never"),
    ],
)
def test_pinned_is_refused_where_it_does_not_apply(overrides, words):
    with pytest.raises(BadConfig, match=rf"^runtime\.placement=pinned.*{words}"):
        assemble(load_config(TINY, ["runtime.backend=ray", "runtime.placement=pinned", *overrides]))


# -- data that live apart ----------------------------------------------------------------------------------------------


@pytest.fixture
def apart(tmp_path):
    """Two machines' folders: clients a0, a1 on node red, client b0 on node blue; the index files of both."""
    points, files = Points(), []
    for node, clients in (("red", ["a0", "a1"]), ("blue", ["b0"])):
        for client in clients:
            mine = slice(
                20 * len(files) + 10 * clients.index(client), 20 * len(files) + 10 * clients.index(client) + 10
            )
            (tmp_path / node / client).mkdir(parents=True)
            np.save(tmp_path / node / client / "x.npy", points.x[mine].numpy())
            np.save(tmp_path / node / client / "y.npy", points.targets[mine].numpy())
        files.append(tmp_path / f"{node}.json")
        files[-1].write_text(json.dumps(client_files.index_of(tmp_path / node, node)))
    return files


def test_the_documented_command_writes_an_index(apart, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["client_files", str(tmp_path / "red"), "--node", "red"])
    client_files.main()
    assert json.loads(capsys.readouterr().out) == json.loads(apart[0].read_text())


def config_of(files, path):
    data = {"name": "client_files", "init_args": {"index": [str(f) for f in files], "path": str(path)}}
    config = {**TINY, "data": data, "partition": {"name": "natural"}, "runtime": {"backend": "ray"}}
    return {k: v for k, v in config.items() if k != "num_clients"} | {"participation": {"name": "full"}}


def test_a_run_is_checked_without_any_clients_samples(apart, tmp_path):
    """The process that starts the run has the indexes, and neither folder."""
    experiment = assemble(load_config(config_of(apart, tmp_path / "nowhere")))
    check(experiment)
    assert experiment.setup.assigned
    assert experiment.setup.nodes == ("red", "red", "blue")
    assert experiment.setup.population.sizes.tolist() == [10, 10, 10]


def test_a_worker_reads_the_folders_of_its_own_clients_only(apart, tmp_path):
    setup = assemble(load_config(config_of(apart, tmp_path / "red"))).setup
    source = BatchSource(setup.train, CPU, torch.float32)
    assert source.gather(np.array([19, 0]))[0].tolist() == Points().x[[19, 0]].tolist()
    with pytest.raises(DataMissing, match=r"b0/x\.npy cannot be read as an array"):
        source.gather(np.array([20]))


def test_workers_are_on_the_nodes_of_their_clients(apart, tmp_path):
    setup = assemble(load_config(config_of(apart, tmp_path))).setup
    assert names_of_nodes(setup, 3) == ("blue", "red", "red")
    with pytest.raises(
        BadConfig, match=r"1 workers, but the data are on 2 kinds of nodes \(blue, red\): set runtime.workers"
    ):
        names_of_nodes(setup, 1)


def test_data_that_live_apart_are_neither_shared_nor_mixed(apart, tmp_path):
    for overrides, words in (
        (["runtime.placement=shared"], "placement=shared, but the clients' data are on certain nodes only"),
        (["algorithm.name=centralized"], "a single client trains on all data, but the clients' data are on certain"),
        (["partition={name: iid}", "num_clients=3"], "partition.name=iid, but must be natural"),
    ):
        with pytest.raises(BadConfig, match=words):
            assemble(load_config(config_of(apart, tmp_path), overrides))


def test_indexes_that_do_not_fit_together_are_refused(apart, tmp_path):
    with pytest.raises(BadConfig, match="files in which every client is named once"):
        assemble(load_config(config_of([apart[0], apart[0]], tmp_path)))
    with pytest.raises(DataMissing, match="is no index file"):
        assemble(load_config(config_of([tmp_path / "lost.json"], tmp_path)))
    wrong = ClientArrays(tmp_path / "red", ["a0"], [11], (np.zeros((0, 4), np.float32), np.zeros(0, np.int64)))
    with pytest.raises(DataMissing, match="a0 has 10 samples, but the index says 11"):
        wrong.rows(np.array([0]))
