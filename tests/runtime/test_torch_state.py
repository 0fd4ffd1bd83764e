"""Torch settings of the calling program change no bit of a run and are restored afterwards."""

from contextlib import contextmanager

import pytest
import torch

import raylfl
from raylfl.config.groups.top import ModelConfig
from raylfl.core.torch_state import checks_without_symbols, torch_defaults
from raylfl.errors import BadConfig
from raylfl.runtime.workers.module import make_module
from tests.runtime.tiny import TINY
from tests.shares import one_in


@contextmanager
def switched(what, value):
    """A setting of torch, `default_dtype` say, with another value."""
    before, put = getattr(torch, f"get_{what}")(), getattr(torch, f"set_{what}")
    put(value)
    try:
        yield
    finally:
        put(before if what != "default_device" else None)


AROUND = {
    "float64": lambda: switched("default_dtype", torch.float64),
    "bfloat16": lambda: switched("default_dtype", torch.bfloat16),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "meta": lambda: torch.device("meta"),
    "default device": lambda: switched("default_device", "meta"),
    "matmul": lambda: switched("float32_matmul_precision", "medium"),
}


def tiny(folder, **more):
    return {**TINY, "rounds": 1, "model": {"name": "mlp"}, "data": {"name": "digits"}, **more} | {
        "logging": {"dir": str(folder), "report": False}
    }


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return raylfl.run(tiny(tmp_path_factory.mktemp("plain")))


@pytest.mark.parametrize("around", one_in(4, AROUND))
def test_a_run_has_the_same_bits_under_any_torch_settings_of_its_caller(around, plain, tmp_path):
    state = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_default_device()
    with AROUND[around]():
        inside = torch.empty(1).dtype, torch.empty(1).device, torch.is_grad_enabled(), torch.is_inference_mode_enabled()
        result = raylfl.run(tiny(tmp_path))
        again = raylfl.resume(result.run_dir, ["rounds=2"])
        module = result.module
        after = torch.empty(1).dtype, torch.empty(1).device, torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    assert after == inside
    assert (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_default_device()) == state
    assert result.params.dtype == torch.float32
    assert torch.equal(result.params, plain.params)
    assert not result.params.is_inference()
    assert len(again.metrics) == 2
    assert all(p.dtype == torch.float32 and p.device.type == "cpu" for p in module.parameters())


def test_the_state_is_put_back_after_an_error(tmp_path):
    with switched("default_dtype", torch.float64):
        with pytest.raises(BadConfig, match=r"local\.lr=-1"):
            raylfl.run(tiny(tmp_path, local={"lr": -1}))
        with pytest.raises(ZeroDivisionError), torch_defaults():
            torch.empty(1 // int(torch.get_default_dtype() == torch.float64))
        assert torch.get_default_dtype() == torch.float64


def test_what_a_module_s_file_sets_as_it_is_imported_ends_with_the_import(tmp_path, monkeypatch):
    """This holds in a worker, which imports the file first, and in a process that has imported it already."""
    text = "import torch\nfrom raylfl.models.networks import MLP\ntorch.set_default_dtype(torch.float64)\n"
    (tmp_path / "greedy.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    shapes = {"in_shape": [1, 8, 8], "num_classes": 10}
    with switched("default_dtype", torch.float32):
        greedy = [make_module(ModelConfig(None, "greedy.MLP", shapes), 0) for _ in range(2)]
        assert torch.get_default_dtype() == torch.float32
    plain = make_module(ModelConfig("mlp", None, shapes), 0)
    for module in greedy:
        assert all(map(torch.equal, module.parameters(), plain.parameters()))


def test_torchs_own_check_is_called_only_for_conditions_that_do_not_hold(monkeypatch):
    seen = []
    monkeypatch.setattr(torch, "_check_with", own := lambda *given: seen.append(given))
    with checks_without_symbols():
        torch._check_with(ValueError, True, "holds")
        torch._check_with(ValueError, False, "fails")
    assert seen == [(ValueError, False, "fails")]
    assert torch._check_with is own
