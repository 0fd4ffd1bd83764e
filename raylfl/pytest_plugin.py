"""A pytest plug-in: the contract of an algorithm (`raylfl.testing`) as tests.

    pytest --raylfl-contract mine.FedCM
    pytest --raylfl-contract "mine.FedCM alpha=0.3" --raylfl-contract mine.FedCM tests/

The entry point `pytest11` registers the plug-in. Without the option it imports nothing but pytest; with the
option and without paths, pytest runs only the contract.
"""

import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

OPTION = "--raylfl-contract"


def pytest_addoption(parser: pytest.Parser) -> None:
    about = "test this algorithm (a class path or a name, then key=value) against raylfl's contract; may be repeated"
    parser.getgroup("raylfl").addoption(OPTION, action="append", default=[], metavar="CLASS", help=about)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption(OPTION) and config.args_source is not pytest.Config.ArgsSource.ARGS:
        config.args = []  # no paths: do not collect the default test folders


@pytest.hookimpl(tryfirst=True)  # before -k and -m select
def pytest_collection_modifyitems(session: pytest.Session, config: pytest.Config, items: list[pytest.Item]) -> None:
    for text in config.getoption(OPTION):
        items += contract_items(session, text)


def contract_items(session: pytest.Session, text: str) -> list[pytest.Item]:
    """One test per contract check of an algorithm. Raises UsageError if the algorithm cannot be built.

    text: the algorithm's class path or name, then options `key=value`, separated by blanks.
    """
    here = str(session.config.invocation_params.dir)
    if here not in sys.path:  # as `python -m` does: mine.FedCM is found in ./mine.py
        sys.path.insert(0, here)
    from raylfl.errors import BadConfig
    from raylfl.testing import CHECKS
    from raylfl.testing.runs import RUN_CHECKS, configured

    name, *options = text.split()
    settings = [f"algorithm={name}", *(f"algorithm.{option}" for option in options)]
    try:
        algorithm = configured(settings).algorithm
    except BadConfig as error:
        raise pytest.UsageError(f"{OPTION} {text}: {error}") from None

    def in_folder(check: Callable[..., None]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            check(settings, Path(folder))

    calls = {name: partial(check, algorithm) for name, check in CHECKS.items()}
    calls |= {name: partial(in_folder, check) for name, check in RUN_CHECKS.items()}
    return [ContractItem.from_parent(session, name=f"{text}::{name}", call=call) for name, call in calls.items()]


class ContractItem(pytest.Item):
    """A test that calls one contract check: of simulated rounds on gradient functions, or of whole runs."""

    def __init__(self, *, call: Callable[[], None], **more: Any):
        super().__init__(**more)
        self.call = call

    def runtest(self) -> None:
        self.call()

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """The message of a violated contract, without a traceback; for any other error the usual traceback."""
        from raylfl.testing import ContractBroken

        return str(excinfo.value) if isinstance(excinfo.value, ContractBroken) else super().repr_failure(excinfo)

    def reportinfo(self) -> tuple[Path, int | None, str]:
        return Path(__file__), None, self.name
