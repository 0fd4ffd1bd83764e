"""Interpretation of Ray's errors: the lost actor or object at the root of an error, and why an actor cannot start."""

from __future__ import annotations

import re

from ray.exceptions import ActorUnavailableError, ObjectLostError, RayActorError

from raylfl.errors import RaylflError
from raylfl.extras import missing_package


def loss_behind(error: Exception) -> Exception:
    """The exception about a lost actor or a lost object at the root of `error`.

    Any other root cause is raised, as it was raised in an actor. Raises RaylflError for an actor that could not start,
    because a restart would fail as well.
    """
    cause = error
    while isinstance(inner := getattr(cause, "cause", None), Exception):
        cause = inner
    if not isinstance(cause, (RayActorError, ObjectLostError)):
        raise cause from None
    if getattr(cause, "actor_init_failed", False):
        raise RaylflError(f"the server actor could not start: {reason_of_start(cause)}") from error
    return cause


def is_restarting(error: RayActorError) -> bool:
    """Whether Ray refused a call because it is restarting the actor; False if the actor was lost during the call."""
    return isinstance(error, ActorUnavailableError) and "actor is restarting" in str(error)


def reason_of_start(error: Exception) -> str:
    """The reason why an actor could not start: a missing package, or the last line of Ray's message."""
    lines = lines_of(error)
    missing = re.search(r"No module named '([\w.]+)'", str(error))
    return missing_package(missing[1], "the cluster's Python") if missing else lines[-1]


def lines_of(error: Exception) -> list[str]:
    """The non-empty lines of an error's message; the name of its type if there are none."""
    return [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
