"""Errors of Ray in the user's words: what was lost, and why an actor could not start."""

from __future__ import annotations

import re

from ray.exceptions import ObjectLostError, RayActorError

from raylfl.errors import RaylflError
from raylfl.extras import missing_package


def loss_behind(error: Exception) -> Exception:
    """The lost actor or lost object at the root of `error`.

    Re-raises any other root cause, as it was inside the actor, or inside one that this actor called. Raises
    RaylflError for an actor that could not start, which starting again would not mend.
    """
    cause = error
    while isinstance(inner := getattr(cause, "cause", None), Exception):
        cause = inner
    if not isinstance(cause, (RayActorError, ObjectLostError)):
        raise cause from None
    if getattr(cause, "actor_init_failed", False):
        raise RaylflError(f"the server actor could not start: {reason_of_start(cause)}") from error
    return cause


def reason_of_start(error: Exception) -> str:
    """The last line of what Ray says of an actor that could not start, or the package that its Python lacks."""
    lines = lines_of(error)
    missing = re.search(r"No module named '([\w.]+)'", str(error))
    return missing_package(missing[1], "the cluster's Python") if missing else lines[-1]


def lines_of(error: Exception) -> list[str]:
    """The lines of an error's message that are not empty; its type where there is none."""
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
