"""Ray for the tests of a file: workers have normal priority and time to start; nothing runs that no test needs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from ray._private.node import Node

from raylfl.runtime.ray.connection import OWN_CLUSTER

PATIENT = {name: OWN_CLUSTER[name] for name in ("RAY_worker_niceness", "RAY_worker_register_timeout_seconds")}
UNUSED = ("start_monitor", "start_log_monitor", "start_api_server")  # autoscaler, logs to the driver, dashboard
SMALL: dict[str, Any] = {"object_store_memory": 100 * 2**20, "include_dashboard": False}
SOON = {"RAY_health_check_period_ms": "1000", "RAY_health_check_failure_threshold": "3"}  # a lost node is noticed
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}


@contextmanager
def lean_ray(**environment: str) -> Iterator[None]:
    """A context in which Ray starts only what tests need, with these variables in its environment."""
    with pytest.MonkeyPatch.context() as patch:
        for name in OWN_CLUSTER:  # which an earlier run on a Ray of its own may have left in this process
            patch.delenv(name, raising=False)
        for name, value in {**PATIENT, **environment}.items():
            patch.setenv(name, value)
        for name in UNUSED:
            patch.setattr(Node, name, lambda self, **options: None)
        yield
