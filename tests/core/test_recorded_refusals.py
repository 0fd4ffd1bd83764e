"""Steps that no recording can replace: they are refused with the reason, and computed by autograd."""

import linecache
import re

import pytest
import torch

from raylfl.replay.proof import Diverged
from raylfl.replay.recorded.tape import record
from raylfl.replay.step_log import StepLog
from tests.core import refused_modules as refused
from tests.core import user_modules as users
from tests.core.test_recorded import check_bits, steps_of, taken

REPLAYED = "has other results when it is replayed: "
REFUSED = {
    refused.Branches: "reads a tensor's values (`.item`, `int`, `float` or `if`), in line ",
    refused.Lists: "takes a tensor's values or memory out of torch (`.tolist`), in line ",
    refused.ArraysInBackward: "takes a tensor's values or memory out of torch (`.numpy`), in line ",
    refused.Prints: "takes a tensor's values or memory out of torch (`.__repr__`), in line ",
    refused.Splits: "splits a tensor at positions that depend on values (`tensor_split`), in line ",
    refused.Products: REPLAYED + "gradient of `first.weight` differs by ",
    refused.Masked: "shapes depend on values (`index`), in line ",
    refused.WrittenMask: "shapes depend on values (`index`), in line ",
    refused.Packed: "shapes depend on values|reads a tensor's values",
    refused.PythonDraws: "draws random numbers from Python or numpy",
    refused.NumpyDraws: "draws random numbers from Python or numpy",
    refused.Counts: "changes the module's attribute `count`",
    refused.WritesTeacher: "changes the parameter `teacher.weight` in place",
    refused.LogsItem: "; log the tensor itself",
    refused.ReplacesData: "changes the parameter `last.bias` in place",
    refused.Texts: "gets batches that hold more than tensors (str)",
    users.CheckpointedDropout: REPLAYED,
}


@pytest.mark.parametrize("kind", REFUSED, ids=lambda kind: kind.__name__)
def test_what_no_recording_can_stand_for_is_refused_and_taken_by_autograd(kind):
    recorded, replayed = check_bits(kind, steps=10)
    assert any(part in str(recorded.refusal) for part in REFUSED[kind].split("|")), recorded.refusal
    assert replayed == 0
    line = re.search("in line ([0-9]+) of refused_modules.py", recorded.refusal)
    assert line is None or linecache.getline(refused.__file__, int(line[1])).endswith("# here\n")


def test_a_logged_object_is_named():
    module, log = users.Dense(), StepLog()
    batch, parameters = module.batch(4), list(module.parameters())

    def step():
        log.note("accuracy", {"train": 1.0}, {})
        return module.training_step(batch, 0)

    found = record(module, batch, step, lambda loss: torch.autograd.grad(loss, parameters), log)
    assert found == "logs an object of the class dict"


SETTINGS = {"scale": 1.0}


class Scaled(users.Dense):
    """A network with two numbers that other code may change: an attribute, and a global variable."""

    def prepare(self):
        self.factor = 1.0
        self.drop = torch.nn.Identity()

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * SETTINGS["scale"] * self.factor


def change_setting(module, monkeypatch):
    monkeypatch.setitem(SETTINGS, "scale", 2.0)


def change_attribute(module, monkeypatch):
    module.factor = 2.0


@pytest.mark.parametrize("change", [change_setting, change_attribute])
@pytest.mark.parametrize(("evaluation", "later"), [(True, 0), (False, 3)])
def test_a_value_that_other_code_changes_ends_the_run(change, evaluation, later, monkeypatch):
    """At the next step after an evaluation, and else when the number of uses is a power of two, here 8."""
    module = Scaled()
    _, recorded = steps_of(module)
    assert taken(recorded, module, 6) == [False] * 4 + [True, False]
    change(module, monkeypatch)
    if evaluation:
        recorded.doubt()
    assert taken(recorded, module, later) == [True] * later
    with pytest.raises(
        Diverged, match=r"differs by 5.0e-01 .* [14] steps were replayed before.* \(set runtime.step=autograd"
    ):
        taken(recorded, module, 1)
    assert not any(taken(recorded, module, 3))  # nothing is computed further by a form that has been wrong


def test_before_the_first_replay_a_value_that_changes_ends_nothing(monkeypatch):
    module = Scaled()
    _, recorded = steps_of(module)
    taken(recorded, module, 2)
    monkeypatch.setitem(SETTINGS, "scale", 2.0)
    assert not any(taken(recorded, module, 8))
    assert recorded.refusal.startswith(f"{REPLAYED}loss differs by 5.0e-01")


def test_a_program_that_differs_from_the_step_it_was_made_of_ends_nothing(monkeypatch):
    """It was never used, and says nothing about the replays of batches of another size."""
    module = users.Dense()
    _, recorded = steps_of(module)
    assert any(taken(recorded, module, 6))
    monkeypatch.setattr(recorded, "_replay", lambda *of_program: "differs")
    for _ in range(3):
        recorded.take(module.batch(5))
    assert recorded.refusal == "differs"


class Indexed(Scaled):
    """A network that does something else in the fifth local step of a client."""

    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (2 if batch_idx == 4 else 1)


class First(Scaled):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx) * (2 if batch_idx == 0 else 1)


@pytest.mark.parametrize("kind", [Indexed, First])
def test_a_step_that_depends_on_its_number_is_compared_at_each_number(kind):
    """Powers of two alone would miss both: of ten local steps, use 2^k is the second, fourth, sixth or eighth."""
    module = kind()
    _, recorded = steps_of(module)
    for client in range(5):
        for t in range(10):
            content = module.batch(4)
            program = recorded.program(content, t)
            loss, row = recorded.replay(program, content) if program else recorded.take(content, t)
            expected = module.training_step(content, t)
            assert torch.equal(loss, expected.detach()), (client, t)
            gradient = torch.autograd.grad(expected, list(module.parameters()))
            assert torch.equal(row, torch.cat([g.reshape(-1) for g in gradient]))
    assert "replayed: loss differs" in recorded.refusal
