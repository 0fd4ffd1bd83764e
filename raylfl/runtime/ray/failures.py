"""Interpretation of Ray's errors: the lost actor or object at the root of an error, and why an actor cannot start."""

import re

from ray.exceptions import (
    ActorUnavailableError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RaySystemError,
    RayTaskError,
)

from raylfl.components.extras import missing_package
from raylfl.errors import BadConfig, RaylflError

ACTOR_LOST = (RayActorError, OutOfMemoryError)  # the errors of a call if the actor's process ended or does not answer


class StatesLost(RaylflError):
    """Raised if states were lost with their node; the message names them. The run continues from its checkpoint."""


def loss_behind(error: Exception) -> Exception:
    """The exception about a lost actor or a lost object at the root of `error`.

    If `error` has another root cause, raises that exception. Raises RaylflError for an actor that could not start,
    because a restart would fail as well.
    """
    cause = error
    while isinstance(inner := getattr(cause, "cause", None), Exception):
        cause = inner
    if not isinstance(cause, (*ACTOR_LOST, ObjectLostError)):
        raise cause from None
    if getattr(cause, "actor_init_failed", False):
        raise RaylflError(f"the server actor could not start: {reason_of_start(cause)}") from error
    return cause


def reason_of_loss(error: Exception) -> str:
    """The reason, for the user, why a call of an actor was lost; Ray's own message has ids and internal names."""
    if isinstance(error, OutOfMemoryError):
        return "Ray ended its process, as its node's memory was almost full; a lower runtime.workers needs less"
    reason = (
        "its process ended or cannot be reached" if isinstance(error, ActorUnavailableError) else "its process ended"
    )
    # Ray's words for a process that ended without a word: the kernel's killer is the first of its possible causes
    return f"{reason}; is its node's memory used up?" if "OOM killer" in str(error) else reason


def reason_of_start(error: Exception) -> str:
    """The reason why an actor could not start: a missing package, or the last line of Ray's message."""
    missing = re.search(r"No module named '([\w.]+)'", str(error))
    return (
        missing_package(missing[1], "the cluster's Python") if missing else str(error).strip().splitlines()[-1].strip()
    )


def error_of_start(error: RayTaskError) -> Exception:
    """The error for the user if a worker could not read the experiment; `error` itself if the cause is unknown.

    The experiment has been built on the node of the driver: the cause is a difference between nodes.
    """
    address = re.search(r"\bip=([^\s,)]+)", str(error))
    where = f"a worker on node {address[1] if address else '?'} could not be started"
    if isinstance(error.cause, RaylflError):
        return BadConfig(f"{where}: {error.cause}")
    if isinstance(error.cause, RaySystemError) and "No module named" in str(error):
        return BadConfig(f"{where}: {reason_of_start(error)}")
    return error
