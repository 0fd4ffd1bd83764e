"""How many clients a GPU has room for, with a card whose memory is counted by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

from raylfl.config.load import load_config
from raylfl.core.lanes import LANES
from raylfl.experiment.assemble import assemble
from raylfl.runtime.workers.backend import LocalBackend
from raylfl.runtime.workers.forms import LocalForms
from raylfl.runtime.workers.step_probes import StepProbes
from tests.runtime.test_run import DIGITS

STEP = 3 * 2**20  # bytes that a step allocates


@pytest.fixture
def worker(monkeypatch):
    """A worker with momentum and SCAFFOLD's client states, on a card of 40 GiB in which a step allocates STEP bytes."""
    experiment = assemble(load_config(DIGITS, ["local.momentum=0.9", "algorithm.name=scaffold"]))
    worker, peak = LocalBackend(experiment.setup).worker, [0]
    gradients = worker.loop.gradients
    worker.loop.gradients = lambda *args: (peak.__setitem__(0, 700 + STEP), gradients(*args))[1]
    card = SimpleNamespace(total_memory=40 * 2**30 - 12345)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 700)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device: peak.__setitem__(0, 700))
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: peak[0])
    return worker


def test_the_measured_step_is_of_the_largest_batch_and_leaves_nothing_behind(worker):
    probes = StepProbes(worker.setup, worker.loop, worker.train, worker.training, worker.attributes)
    before, sizes = [worker.flat.params.clone(), worker.flat.read_buffers()], []
    batch = worker.train.batch
    worker.train.batch = lambda indices: (sizes.append(len(indices)), batch(indices))[1]
    assert probes.step_bytes() == STEP
    assert sizes == [worker.setup.batch_size]
    assert all(map(torch.equal, before, [worker.flat.params, worker.flat.read_buffers()]))


@pytest.mark.parametrize(("share", "together"), [(1.0, True), (0.25, True), (0.25, False)])
def test_room_is_the_class_of_the_card_less_a_fifth_and_the_data(worker, monkeypatch, share, together):
    d = worker.flat.width
    of_client = 4 * (10 * d + 2 * (d + d))  # ten copies; SCAFFOLD's variate and the momentum, before and after
    data = sum(array.nbytes for array in worker.setup.train.arrays)
    monkeypatch.setattr(type(worker.setup.runtime), "on", lambda self, processes: SimpleNamespace(gpus=share))
    monkeypatch.setattr(LocalForms, "side_by_side", property(lambda self: not together))
    worker.forms.initial = worker.initial._replace(moments=torch.zeros(d))
    room = 32 * 2**30 * share * 0.8 - data
    expected = room / (of_client + STEP) if together else (room - LANES * STEP) / of_client
    assert worker.forms.most_clients(STEP) == np.floor(expected)


class Convolution(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 10))

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])


@pytest.mark.parametrize(("limit", "pays"), [(0, False), (1, True)])
def test_the_operations_of_the_largest_batch_decide_whether_one_call_pays(monkeypatch, limit, pays):
    """A product of [a, b] and [b, c] is 2abc operations; backward has two of them, and one for the first layer."""
    experiment = assemble(
        load_config(DIGITS, ["local.batch_size=12", "model.class_path=tests.runtime.test_room.Convolution"])
    )
    worker = LocalBackend(experiment.setup).worker
    convolution, linear = 2 * 36 * 2 * 9, 2 * 72 * 10  # of a sample
    expected = 12 * (2 * convolution + 3 * linear)
    monkeypatch.setattr("raylfl.runtime.workers.step_probes.MOST_OPERATIONS", expected - 1 + limit)
    probes = StepProbes(worker.setup, worker.loop, worker.train, worker.training, worker.attributes)
    before = worker.flat.params.clone()
    assert probes.cohort_pays() == pays
    assert torch.equal(worker.flat.params, before)
