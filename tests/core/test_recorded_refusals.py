"""Steps that no recording can replace: they are refused with the reason, and computed by autograd."""

from __future__ import annotations

import linecache
import pickle
import re

import pytest
import torch

from raylfl.core.recorded.tape import record
from raylfl.core.step_log import StepLog
from raylfl.errors import BadConfig
from tests.core import refused_modules as refused
from tests.core import user_modules as users
from tests.core.test_recorded import check_bits, steps_of
from tests.core.user_modules import HIDDEN

REFUSED = {
    refused.Branches: "reads a tensor's values (`.item`, `int`, `float` or `if`), in line ",
    refused.Lists: "takes a tensor's values or memory out of torch (`.tolist`), in line ",
    refused.Arrays: "takes a tensor's values or memory out of torch (`.numpy`), in line ",
    refused.ArraysInBackward: "takes a tensor's values or memory out of torch (`.numpy`), in line ",
    refused.Splits: "splits a tensor at positions that depend on values (`tensor_split`), in line ",
    refused.Products: "calls `prod`, whose gradient takes another course if a value is 0, in line ",
    refused.LearnedMask: "calls `masked_fill` with a trained number, whose gradient takes another course when "
    "recorded, in line ",
    refused.LearnedMaskByName: "calls `masked_fill` with a trained number, ",
    refused.Masked: "shapes depend on values (`index`), in line ",
    refused.WrittenMask: "shapes depend on values (`index`), in line ",
    refused.Packed: "shapes depend on values|reads a tensor's values",
    refused.PythonDraws: "draws random numbers from Python or numpy",
    refused.NumpyDraws: "draws random numbers from Python or numpy",
    refused.OwnNumpyGenerator: "changes the module's attribute `rng`",
    refused.OwnTorchGenerator: "draws from a generator of its own, in line ",
    refused.Reseeds: "does not have autograd's bits",
    refused.Counts: "changes the module's attribute `count`",
    refused.CountsDeep: "changes the module's attribute `meters['loss'][1].seen`",
    refused.Iterates: "changes the module's attribute `numbers`",
    refused.Keeps: "changes the module's attribute `features`",
    refused.Hidden: "uses a tensor (8) that is no parameter, no buffer, no attribute and not of the batch, in line ",
    refused.HiddenCount: "does not take the same course in every step",
    refused.SharedCount: "changes `tests.core.refused_modules.NOTES[",
    refused.WritesBatch: "overwrites `batch[0]` in place",
    refused.WritesWeights: "overwrites `first.weight` in place",
    refused.WritesTeacher: "overwrites `teacher.weight` in place (register it as a buffer)",
    refused.Teachers: "uses a parameter (5x5) of a module in a plain list or dict (use nn.ModuleList or nn.ModuleDict)",
    refused.Measures: "uses the metric object Accuracy (compute the value with torchmetrics.functional, ",
    refused.LogsItem: "; log the tensor itself",
    refused.WritesLastBias: "overwrites `last.bias` in place",
    refused.ReplacesData: "replaces a tensor's `.data`, in line ",
    refused.Texts: "gets batches that hold more than tensors (str)",
    refused.Spectral: "uses a sparse, complex or quantised tensor",
}


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_what_no_recording_can_stand_for_is_refused_and_taken_by_autograd(kind):
    recorded, replayed = check_bits(kind, steps=10)
    assert any(part in str(recorded.refusal) for part in REFUSED[kind].split("|")), recorded.refusal
    assert replayed == 0
    line = re.search("in line ([0-9]+) of refused_modules.py", recorded.refusal)
    assert line is None or linecache.getline(refused.__file__, int(line[1])).endswith("# here\n")


def test_a_logged_metric_object_is_named_with_the_remedy():
    module, log = users.Dense(), StepLog()
    batch, parameters = module.batch(4), list(module.parameters())

    def step():
        log.note("accuracy", refused.Accuracy(), {})
        return module.training_step(batch, 0)

    found = record(module, batch, step, lambda loss: torch.autograd.grad(loss, parameters), log)[2]
    assert found.startswith("logs the metric object Accuracy (compute the value with torchmetrics.functional, ")


def test_a_module_that_keeps_a_value_of_a_recorded_step_can_be_pickled():
    module = refused.Keeps()
    module.register_forward_hook(lambda module, args, output: setattr(module, "features", output.detach()))
    module.features = None
    _, recorded = steps_of(module)
    for _ in range(2):
        recorded.take(module.batch(4))
    assert recorded.refusal == REFUSED[refused.Keeps]
    assert torch.equal(pickle.loads(pickle.dumps(module.features)), module.features)


def test_a_course_that_changes_late_ends_the_run_with_an_error():
    HIDDEN.notes["late"].clear()
    module = users.Late()
    _, recorded = steps_of(module)

    def step():
        content = module.batch(4)
        HIDDEN.notes["late"].append(0) if recorded.program(content) else recorded.take(content)

    for _ in range(7):
        step()
    with pytest.raises(BadConfig, match=r"Late.training_step takes another course .* \(set runtime.step=autograd\)"):
        step()


def test_an_attribute_that_other_methods_change_is_noticed_at_the_next_step():
    module = users.Dense()
    module.factor = 1.0
    _, recorded = steps_of(module)
    for _ in range(4):
        recorded.take(module.batch(4))
    assert recorded.program(module.batch(4)) is not None
    recorded.doubt()
    assert recorded.program(module.batch(4)) is not None
    module.factor = 2.0
    recorded.doubt()
    assert recorded.program(module.batch(4)) is None
    assert "`factor`" in recorded.refusal


class Meter(torch.nn.Module):
    """A metric object, which is reset before every local work."""

    def __init__(self):
        super().__init__()
        self.reset()

    def reset(self):
        self.total = torch.ones(())

    update = compute = reset


class Metered(users.Dense):
    def prepare(self):
        self.meter, self.uses = Meter(), False

    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        return loss * self.meter.total if self.uses else loss


@pytest.mark.parametrize("uses", [False, True])
def test_a_reset_metric_object_ends_no_replays_but_a_step_that_reads_its_tensors_is_refused(uses):
    module = Metered()
    module.uses = uses
    _, recorded = steps_of(module)
    for _ in range(4):
        recorded.take(module.batch(4))
    module.meter.reset()
    recorded.doubt()
    assert (recorded.program(module.batch(4)) is None) is uses
    assert (recorded.refusal is not None) is uses


SETTINGS = {"scale": 1.0}


class Scaled(users.Dense):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * SETTINGS["scale"]


def test_a_setting_that_changes_between_rounds_is_noticed_at_the_next_local_work(monkeypatch):
    module = Scaled()
    _, recorded = steps_of(module)
    for _ in range(4):
        recorded.take(module.batch(4))
    recorded.begin()
    assert recorded.program(module.batch(4)) is not None
    monkeypatch.setitem(SETTINGS, "scale", 2.0)
    recorded.begin()
    assert recorded.program(module.batch(4)) is None
    assert recorded.refusal == f"may depend on `{__name__}.SETTINGS['scale']`, which is changed elsewhere"


def test_a_module_with_a_compiled_part_is_left_to_autograd():
    module = users.Dense()
    module.first._compiled_call_impl = torch.relu  # as `module.first.compile()` sets it
    assert steps_of(module)[1].refusal == "calls `first`, which torch.compile has compiled"
