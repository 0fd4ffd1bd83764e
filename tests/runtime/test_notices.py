"""Lines at the start of a run about what has no effect, or another one than its name says; none where all is used."""

from dataclasses import dataclass

import pytest
import torch
from lightning.pytorch import LightningModule
from PIL import Image
from torch.utils.data import DataLoader, TensorDataset, default_collate

from raylfl.algorithms.fedavg import FedAvg
from raylfl.algorithms.fedprox import FedProx
from raylfl.config.load import load_config
from raylfl.config.objects import object_layer
from raylfl.execution.planned import prepare
from raylfl.execution.several import run
from raylfl.runtime.session import gpu_note
from tests.runtime.tiny import ONE_BY_ONE, PERFECT, Net, Points

PLAIN = {**PERFECT, "runtime": ONE_BY_ONE["runtime"], "eval": {"every": 1}}
CLIENTS = ["eval.clients=true", "eval.per_client=true"]


class Plain(Net):
    """A module without an optimizer of its own."""

    configure_optimizers = LightningModule.configure_optimizers

    def __init__(self, norm=False):
        super().__init__(norm=norm, dropout=0.0)


def lines_of(*overrides, model=Plain, data=Points, **objects):
    config = load_config(PLAIN, overrides, object_layer({"model": model, "data": data, **objects}))
    return prepare(config).warnings


def test_nothing_is_said_where_everything_is_used():
    assert lines_of() == []
    assert lines_of("eval.participants=true", *CLIENTS) == []


class Counting(Plain):
    """A step whose loss depends on the number of earlier steps, which `count` keeps."""

    counted, seen = 0, [0]

    def __init__(self):
        super().__init__()
        self.scale, self.deep = [torch.ones(())], {"a": [0]}

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * self.count()


class InClass(Counting):
    def count(self):
        InClass.counted += 1
        return InClass.counted


class InTensor(Counting):
    def count(self):
        return self.scale[0].add_(1.0)


class InList(Counting):
    def count(self):
        self.deep["a"][0] += 1
        return self.deep["a"][0]


class InBuffer(Plain):
    """An attribute is a view of a buffer, which each client has from the server."""

    def __init__(self):
        super().__init__()
        self.register_buffer("means", torch.zeros(4))
        self.half = self.means[:2]

    def training_step(self, batch, batch_idx):
        self.means.add_(1.0)
        return super().training_step(batch, batch_idx) + self.half.sum()


class InBatch(Plain):
    def training_step(self, batch, batch_idx):
        batch[0].add_(1.0)
        return super().training_step(batch, batch_idx)


CARRIED = "from client to client: results may depend on the number of workers"


def test_state_that_is_carried_from_client_to_client_is_named():
    outside = f"training_step carries state outside the module (a global, a closure, a class) {CARRIED}"
    assert any(outside in line for line in lines_of(model=InClass))
    assert not any(CARRIED in line for line in [*lines_of(model=InList), *lines_of(model=InBuffer)])
    lines = lines_of(model=InTensor)
    assert any("scale is changed in place, and has its first value again for each client" in line for line in lines)
    assert not any(CARRIED in line for line in lines)
    assert lines_of(model=InBatch) == []


class Own(Plain):
    configure_optimizers = Net.configure_optimizers


def test_an_optimizer_of_the_module_that_is_not_used_is_named():
    (line,) = lines_of(model=Own)
    assert "configure_optimizers is not used, local.optimizer=sgd with local.lr=0.05 is: local.optimizer=module" in line
    (line,) = lines_of("local.optimizer=adamw", model=Own)
    assert "local.optimizer=adamw" in line
    (line,) = lines_of("algorithm.name=scaffold", model=Own)
    assert "configure_optimizers is not used: the method defines its own local step" in line
    assert lines_of("local.optimizer=module", model=Own) == []


class Annealed(Plain):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (1 + self.current_epoch)


class InAHook(Plain):
    def on_train_epoch_start(self):
        self.warm = self.global_step < 5


class InEvaluation(Plain):
    def validation_step(self, batch, batch_idx):
        self.log("seen", float(self.current_epoch))


class Counted(Plain):
    """Has a counter of its own under the same name, which is not Lightning's."""

    current_epoch = 3

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * self.current_epoch


@pytest.mark.parametrize(
    ("model", "name"),
    [(Annealed, "current_epoch"), (InAHook, "global_step"), (InEvaluation, "current_epoch"), (Counted, None)],
)
def test_a_module_that_reads_a_counter_of_lightning_is_told_that_it_is_0(model, name):
    lines = [line for line in lines_of(model=model) if "is always 0" in line]
    assert [f"{name} is always 0" in line for line in lines] == [True] * (name is not None)


class Sizes(Points):
    def __init__(self):
        super().__init__()
        self.client_indices = [list(range(3)), list(range(3, 20)), list(range(20, 60))]


NATURAL = ["partition.name=natural", "num_clients=3", "weights=data_size"]


@dataclass
class Weighing(FedAvg):
    """Weighs at the clients: a method of which only the result shows that it uses w_i."""

    def direction(self, x, g, carry):
        return carry["share"] * g, carry

    def start(self, broadcast, client_state, work):
        return {"share": torch.as_tensor(work.relative_weight, dtype=broadcast["x"].dtype)[:, None]}


@pytest.mark.parametrize(
    ("changes", "algorithm", "words"),
    [
        ([], None, "fedavg does not use w_i here; algorithm.aggregate=weighted uses them"),
        (["algorithm.name=scaffold"], None, "scaffold does not use w_i here; only metrics use them"),
        (["algorithm.name=fedprox"], FedProx, "fedprox does not use w_i here"),
        (["algorithm.aggregate=weighted"], None, None),
        (["algorithm.name=fednova"], None, None),
        (["algorithm.name=centralized"], None, None),
        (["algorithm.name=dsgd", "topology.name=ring"], None, None),
        ([], Weighing, None),
        # clients sampled in proportion to their data, whose updates are averaged: F has the weights data_size
        (["participation={name: weighted, weights: data_size, replace: true, size: 2}"], None, None),
    ],
)
def test_weights_that_a_method_does_not_use_are_named(changes, algorithm, words):
    found = [line for line in lines_of(*NATURAL, *changes, data=Sizes, algorithm=algorithm) if "w_i" in line]
    assert len(found) == (words is not None)
    assert all(line.startswith("weights=data_size has no effect on the parameters: ") for line in found)
    assert words is None or words in found[0]


def test_weights_of_equal_clients_need_no_line():
    assert lines_of("weights=data_size", "partition.name=iid") == []
    assert lines_of(*NATURAL[:2], data=Sizes) == []  # uniform weights are the default


@dataclass
class Heads(FedAvg):
    """FedPer: the last 3 parameters stay with the client."""

    def init_clients(self, x, count):
        return {"head": x[-3:].repeat(count, 1)}

    def start_point(self, broadcast, client_state):
        head = client_state["head"]
        return torch.cat([broadcast["x"][:-3].expand(len(head), -1), head], dim=1)

    def finish(self, x, carry, client_state, work):
        return {"update": carry["x_start"] - x}, {"head": x[:, -3:]}


def test_an_evaluation_on_clients_says_that_it_measures_the_servers_model():
    for objects, changes in (({"algorithm": Heads}, []), ({}, ["algorithm.name=local_only"])):
        (line,) = lines_of(*CLIENTS, *changes, **objects)
        assert line.startswith("eval.clients: the server's model is measured on the clients' data")
    for name in ("scaffold", "mifa"):  # states from which no local step starts
        assert lines_of(*CLIENTS, f"algorithm.name={name}") == []
    (line,) = lines_of(*CLIENTS, "eval.every=0", "algorithm.name=local_only")
    assert line == "eval.clients=true has no effect: it needs eval.every > 0"
    assert lines_of("algorithm.name=local_only") == []


class Normed(Plain):
    def __init__(self):
        super().__init__(norm=True)


def test_an_evaluation_with_local_buffers_says_that_it_uses_the_initial_ones(runs):
    (line,) = lines_of("local.buffers=local", model=Normed)
    assert line.startswith("local.buffers=local: evaluations use the initial buffers")
    assert lines_of("local.buffers=local") == lines_of(model=Normed) == []
    module = run(PLAIN, [*runs, "local.buffers=local", "rounds=1"], model=Normed, data=Points).module
    assert module.body[1].running_mean.abs().max() == 0
    assert module.body[1].running_var.equal(torch.ones(6))


def mixed_up(samples):
    x, y = default_collate(samples)
    return x.flip(0) + x, y


class MixedUp:
    """A training loader that augments in its collate function, and a test loader."""

    test_collate = None

    def train_dataloader(self):
        points = Points()
        return DataLoader(TensorDataset(points.x, points.targets), batch_size=4, collate_fn=mixed_up)

    def test_dataloader(self):
        points = Points()
        return DataLoader(TensorDataset(points.x, points.targets), batch_size=4, collate_fn=self.test_collate)


class OneCollate(MixedUp):
    test_collate = staticmethod(mixed_up)


def test_an_evaluation_on_clients_names_the_collate_function_of_the_training_set():
    (line,) = lines_of("eval.participants=true", *CLIENTS, data=MixedUp)
    assert line.startswith("eval.clients, eval.participants: the clients' data go through the collate function of the")
    assert lines_of(data=MixedUp) == lines_of("eval.participants=true", data=OneCollate) == []


def test_what_a_folder_of_images_leaves_out_is_a_warning_of_the_run(tmp_path):
    for name in ("train/a/1.png", "train/b/2.png", "test/a/3.png", "train/a/more/4.png", "train/b/5.gif"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    data = {"name": "image_folder", "init_args": {"path": str(tmp_path), "cache": str(tmp_path / "cache")}}
    config = {"model": "mlp", "data": data, "num_clients": 2, "local": {"steps": 1}, "runtime": {"backend": "local"}}
    for _ in range(2):  # the second time from the cache
        warned = prepare(load_config(config)).warnings
        assert [line.partition(": ")[2] for line in warned] == [
            "files other than .jpg, .jpeg, .png are left out: 1 of suffix .gif",
            "1 images outside <half>/<class>/ are left out: train/a/more/4.png",
            f"{tmp_path / 'test'} has no images of b: test scores leave them out",
        ]


def test_a_gpu_that_is_idle_or_whose_processes_take_turns_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    assert (gpu_note(0.0), gpu_note(1.0), gpu_note(2.0)) == (None, None, None)
    assert "nvidia-cuda-mps-control -d" in gpu_note(0.125)
    (tmp_path / "control").touch()
    assert gpu_note(0.125) is None
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "runtime.gpus_per_worker=auto" in gpu_note(0.0)
