"""Every failure in this folder names the installed versions, the tested versions, and the next steps."""

from collections.abc import Mapping
from importlib.metadata import version

import pytest

from raylfl.startup import SEEN
from tests.startup.forks import forks_after

TO_DO = """\
raylfl/startup works around what these libraries do when they are imported; another version may do it differently.
1. `python -X importtime -c "import lightning.pytorch"` shows what is imported now; the docstring of the setting says
   what it relies on. Adapt raylfl/startup, or delete a setting that the library no longer needs.
2. Until then users switch it off: RAYLFL_LAZY_IMPORTS=0, RAYLFL_KEEP_MEMORY=0.
3. `python -m benchmarks.startup` shows what it still saves. Put the new versions into SEEN."""


def advice(installed: Mapping[str, str]) -> str:
    """The installed versions beside SEEN, and the steps to take."""
    lines = [f"{name} {installed[name]}, last tested with {seen}" for name, seen in SEEN.items()]
    return "\n".join([*lines, TO_DO])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        report.sections.append(("raylfl/startup", advice({name: version(name) for name in SEEN})))
    return report


@pytest.fixture(scope="module")
def after_torch(tmp_path_factory):
    """`after_torch(code)`: the output of code in a process that has imported torch and our module."""
    with forks_after("import sys, torch, raylfl.startup\n", tmp_path_factory.mktemp("torch")) as python:
        yield python
