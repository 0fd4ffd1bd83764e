"""The rule of `runtime.layout`, case by case."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

from raylfl.errors import BadConfig
from raylfl.runtime.workers.module import layout_for

FEW, MANY, NONE = (SimpleNamespace(convolutions=[1] * n, pays=pays) for n, pays in ((1, True), (1, False), (0, False)))
CPU, GPU = torch.device("cpu"), torch.device("cuda")


class Model(LightningModule):
    """A module without hooks."""


def layout(
    setting="auto",
    step=FEW,
    device=CPU,
    dtype="float32",
    vectorize="auto",
    optimizer="sgd",
    convolutions=True,
    precision=None,
):
    """The layout, and the number of requests for the translation of the step."""
    asked = []
    setup = SimpleNamespace(
        runtime=SimpleNamespace(layout=setting, vectorize=vectorize, precision=precision),
        optimizer=optimizer,
        dtype=dtype,
    )
    module = Model()
    module.layer = nn.Conv2d(1, 1, 1) if convolutions else nn.Linear(1, 1)
    found = layout_for(module, device, setup, lambda: asked.append(1) or step)
    return found, len(asked)


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ({}, ("batch_last", 1)),
        ({"step": MANY}, ("channels_last", 1)),
        ({"step": None}, ("channels_last", 1)),
        ({"step": NONE}, ("channels_last", 1)),
        ({"device": GPU}, ("contiguous", 0)),
        ({"device": GPU, "precision": "32-tf32"}, ("channels_last", 0)),
        ({"device": GPU, "precision": "bf16-mixed"}, ("channels_last", 0)),
        ({"device": GPU, "precision": "32-true"}, ("contiguous", 0)),
        ({"dtype": "float64"}, ("contiguous", 0)),
        ({"vectorize": "always"}, ("channels_last", 0)),
        ({"optimizer": "module"}, ("contiguous", 0)),
        ({"optimizer": "module", "setting": "channels_last"}, ("contiguous", 0)),
        ({"convolutions": False}, ("contiguous", 0)),
        ({"setting": "contiguous"}, ("contiguous", 0)),
        ({"setting": "channels_last", "device": GPU, "dtype": "float64"}, ("channels_last", 0)),
        ({"setting": "batch_last", "step": MANY}, ("batch_last", 1)),
        ({"setting": "batch_last", "dtype": "float64"}, ("batch_last", 1)),
    ],
)
def test_the_layout_follows_from_device_dtype_and_the_modules_convolutions(case, expected):
    assert layout(**case) == expected


@pytest.mark.parametrize("case", [{"step": None}, {"step": NONE}, {"device": GPU}, {"vectorize": "always"}])
def test_batch_last_is_refused_where_no_step_can_be_translated(case):
    with pytest.raises(BadConfig, match=r"runtime\.layout=batch_last, but Model here does not take steps"):
        layout("batch_last", **case)
