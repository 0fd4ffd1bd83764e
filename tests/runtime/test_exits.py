"""Code of the user that calls `sys.exit`, or raises what is no Exception, is a failure that is named; no run ends with
exit code 0 before its last round.
"""

import asyncio

import pytest

import raylfl
from raylfl.errors import CodeExited, RaylflError, exits_as_errors, own_code
from raylfl.testing.runs import Killed
from tests.runtime.tiny import TINY, Net


class Own(BaseException):
    """An error of the user that is no Exception."""


ENDS = {
    "sys.exit": (SystemExit, "sys.exit() was called"),
    "sys.exit(0)": (SystemExit(0), "sys.exit(0) was called"),
    "sys.exit(3)": (SystemExit(3), "sys.exit(3) was called"),
    "sys.exit(text)": (SystemExit("bye"), "sys.exit(bye) was called"),
    "GeneratorExit": (GeneratorExit(), "GeneratorExit() was raised"),
    "cancelled": (asyncio.CancelledError(), "CancelledError() was raised"),
    "own": (Own("x"), "Own('x') was raised"),
}


class Ending(Net):
    """Raises `end` (a key of ENDS) in the hook `hook` from the step number `after` on."""

    def __init__(self, end, hook, after=0, **options):
        super().__init__(**options)
        self.end, self.hook, self.after = ENDS[end][0], hook, after
        if hook == "init":
            raise self.end

    def training_step(self, batch, batch_idx):
        if self.hook == "training_step":
            raise self.end
        return super().training_step(batch, batch_idx)

    def on_train_start(self):
        if self.hook == "on_train_start":
            raise self.end

    def test_step(self, batch, batch_idx):
        if self.hook == "test_step":
            raise self.end
        return super().test_step(batch, batch_idx)


CASES = [*zip(ENDS, ["init", "training_step"] * 4, strict=False), ("sys.exit", "on_train_start"), ("own", "test_step")]


@pytest.mark.parametrize(("end", "hook"), CASES)
def test_an_exit_of_a_module_is_an_error_that_is_named(end, hook, tmp_path):
    model = {"class_path": "tests.runtime.test_exits.Ending", "init_args": {"end": end, "hook": hook}}
    with pytest.raises(Exception) as error:
        raylfl.run({**TINY, "model": model}, [f"logging.dir={tmp_path}"])
    said = "\n".join([str(error.value), *getattr(error.value, "__notes__", [])])
    assert ENDS[end][1] in said
    assert "test_exits.py" in said or "test_exits.py" in own_code(error.value)


@pytest.mark.parametrize("where", ["import", "data", "server_step"])
def test_no_command_ends_with_code_0_before_its_last_round(call, fresh, where):
    code = {
        "import": "import sys\nsys.exit(0)\n",
        "data": "import sys\nclass Data:\n    def __init__(self):\n        sys.exit(0)\n",
        "server_step": (
            "import sys\nfrom dataclasses import dataclass\nfrom raylfl.algorithms.fedprox import FedProx\n"
            "@dataclass\nclass Fed(FedProx):\n    def server_step(self, *args):\n        sys.exit(0)\n"
        ),
    }[where]
    (fresh / "mine.py").write_text(code)
    key = {"import": "model.class_path=mine.Net", "data": "data.class_path=mine.Data"}
    override = key.get(where, "algorithm.class_path=mine.Fed")
    returned, _, err = call("run", "digits", "runtime.backend=local", "rounds=1", override)
    assert returned in (1, 2)
    assert "sys.exit(0) was called" in err


def test_a_keyboard_interrupt_and_exceptions_of_raylfl_stay_what_they_are():
    for kind in (KeyboardInterrupt, Killed, RaylflError, ValueError, StopIteration):
        with pytest.raises(kind), exits_as_errors():
            raise kind
    with pytest.raises(CodeExited), exits_as_errors():
        raise SystemExit
