"""The profile: the timed forms, whose rounds are equal; the rule of `runtime.layout`."""

from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn

from benchmarks import step_profile
from benchmarks.step_profile import Peak, at_peak
from raylfl.cli import main
from raylfl.config.groups.runtime import LAYOUTS
from raylfl.config.load import load_config
from raylfl.errors import BadConfig
from raylfl.experiment.assemble import assemble
from raylfl.replay.recorded.calls import Call, Geometry, Slot
from raylfl.runtime.profile import PHASES, profile
from raylfl.runtime.round.loop import Federation
from raylfl.runtime.workers.backend import LocalBackend
from raylfl.runtime.workers.module import layout_for
from tests.shares import also

DIGITS = {
    "num_clients": 8,
    "model": {"name": "logistic"},
    "data": {"name": "digits"},
    "participation": {"name": "uniform", "size": 4},
    "local": {"steps": 3, "batch_size": 8, "lr": 0.1},
    "eval": {"every": 0},
    "runtime": {"backend": "local"},
}


def timed(overrides, rounds=4):
    return profile(assemble(load_config(DIGITS, overrides)), rounds)


@pytest.mark.parametrize(
    ("overrides", "forms", "rule"),
    [
        ([], {"never contiguous", "always contiguous"}, "always contiguous"),
        # one client at a time, for any setting
        also(["algorithm.name=sfl"], {"never contiguous"}, "never contiguous"),
        (
            ["model.name=lenet5", "data.init_args.upscale=28", "participation.size=2", "local.batch_size=2"],
            {f"never {layout}" for layout in LAYOUTS} | {"always contiguous", "always channels_last"},
            "never batch_last",
        ),
    ],
)
def test_each_form_that_differs_is_timed_once_and_the_rules_is_marked(overrides, forms, rule):
    timings, kernels = timed(overrides, 2)
    assert {f"{t.vectorize} {t.layout}" for t in timings} == forms
    assert [f"{t.vectorize} {t.layout}" for t in timings if t.rule] == [rule]
    assert [t.median for t in timings] == sorted(t.median for t in timings)
    for t in timings:
        assert len(t.seconds) == 2
        assert t.steps_per_round == (6 if "participation.size=2" in overrides else 12)
        assert set(t.phases) == set(PHASES.values())
        assert 0 < sum(t.phases.values()) < 2 * max(t.seconds)
    assert sum(row["% of all kernels"] for row in kernels) <= 100.5
    assert any(row["kernel"].startswith("aten::") for row in kernels)


def test_the_command_prints_what_to_write(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    assert main(["profile", "digits", "num_clients=8", "local={epochs: null, steps: 2}", "--rounds", "1"]) == 0
    torch.set_num_threads(threads)
    out = capsys.readouterr().out
    assert "runtime.vectorize=never runtime.layout=" in out
    assert "local work" in out
    assert "(auto)" in out
    assert "Its kernels" in out
    assert "leave both at auto" in out or "Faster here than the rule" in out
    assert not (tmp_path / "runs").exists()


def test_rounds_must_be_counted(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["profile", "digits", "--rounds", "0"])
    assert stop.value.code == 2
    assert "must be a whole number >= 1" in capsys.readouterr().err


def test_a_call_at_the_peak_takes_its_operations_or_its_bytes():
    """At 1000 operations and 100 bytes a second: a product in float64, a sum, and a view, which is free."""
    aten, peak = torch.ops.aten, Peak(500.0, 1000.0, 100.0)
    shapes = [(3, 4), (4, 5), (3, 5), (3, 5), (5, 3)]
    geometry = {k: Geometry(k, shape, (1, 1), 0, torch.float64) for k, shape in enumerate(shapes)}
    calls = [
        Call(aten.mm.default, (Slot(0), Slot(1)), {}, Slot(2)),
        Call(aten.add.Tensor, (Slot(2), Slot(2)), {}, Slot(3)),
        Call(aten.t.default, (Slot(3),), {}, Slot(4)),
    ]
    seconds = [8 * (12 + 20 + 15) / 100, 8 * 3 * 15 / 100, 0.0]
    assert [at_peak(call, geometry, peak) for call in calls] == pytest.approx(seconds)
    assert at_peak(calls[0], geometry, Peak(1.0, 1.0, 100.0)) == 2 * 3 * 4 * 5


def test_the_calls_of_a_replayed_step_are_timed_one_by_one():
    experiment = assemble(load_config(DIGITS, ["runtime.vectorize=never", "participation.size=8"]))
    backend = LocalBackend(experiment.setup)
    rounds = Federation.of(experiment, backend).rounds(10)
    for _ in range(4):
        next(rounds)
    rounds.close()
    step = step_profile.step_profile(backend.worker, Peak(1e9, 1e9, 1e9))
    backend.close()
    products = [row for row in step.calls if row["operator"] in ("mm", "addmm", "addmm.out", "aten::addmm")]
    assert products
    assert all(row["us"] > 0 for row in step.calls)
    assert all(row["us at peak"] > 0 for row in products)
    assert step.at_peak > 0
    assert step.kernels > 0


# -- the rule of runtime.layout, case by case -------------------------------------------------------------------------


FEW, MANY, NONE = (
    SimpleNamespace(convolutions=[1] * n, pays=lambda size, pays=pays: pays)
    for n, pays in ((1, True), (1, False), (0, False))
)
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
        batch_size=20,
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
