"""A preview of the rounds of a run without training: sampled clients, received uploads and local steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, cast

from raylfl.core.algorithm import ServerState
from raylfl.errors import BadConfig
from raylfl.experiment.parts import Experiment
from raylfl.heterogeneity.trace import Row
from raylfl.runtime.round.plan import Planner, check_sampling


def draw_rows(experiment: Experiment) -> list[Row]:
    """The rows of participation.jsonl that a run of this experiment would write if no client failed.

    Raises BadConfig for an algorithm whose choice of clients depends on updates or on earlier rounds. Also raises
    BadConfig, as a run does, if the algorithm samples clients itself and the config gives no number of draws.
    """
    check_sampling(experiment)
    planner, untrained = Planner(experiment), cast(ServerState, _Untrained())
    if experiment.algorithm.samples_by_norm:
        _refuse()
    return [planner.row(planner.plan(r, untrained)) for r in range(experiment.world.rounds)]


class _Untrained(Mapping[str, Any]):
    """A server state that cannot be read, because no round has been carried out."""

    def __getitem__(self, name: str) -> Any:
        _refuse()

    def __iter__(self) -> Iterator[str]:
        _refuse()

    def __len__(self) -> int:
        _refuse()


def _refuse() -> NoReturn:
    raise BadConfig(
        "algorithm: its choice of clients depends on their updates or on earlier rounds, which a trace does not compute"
    )
