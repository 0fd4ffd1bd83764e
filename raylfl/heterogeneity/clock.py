"""Virtual clock: the duration of a round on clients of given speed and links of given bandwidth.

    client i        t_i = K_i seconds_per_step_i + (up_i + down_i)/bandwidth + wait_i
    round           max of t_i over the cohort if clients work in parallel, sum if they work in sequence
    computation     sum over the cohort of K_i seconds_per_step_i   (FedACS, App. I.3.4)

K_i is the number of local steps of client i. up_i and down_i are the floats that client i sends and receives;
`bandwidth` is the option of `Clock`. wait_i is the time in seconds for which client i waits for messages; it follows
from the latency and bandwidth of the config group `topology`. A lost upload takes the same time as a received one. A
round without sampled clients takes 0 seconds.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from raylfl.components.options import Doc, Gt, Options
from raylfl.core.arrays import Floats, Ints
from raylfl.core.pattern import ExchangePattern
from raylfl.heterogeneity.values import POSITIVE, PerClient, ValuePerClient
from raylfl.heterogeneity.world import RunContext

_SECONDS = replace(POSITIVE, phases=False)


@dataclass
class Clock(Options):
    """Options of the virtual clock, part of the config group `system`.

    seconds_per_step: one value per client, in the grammar of `values.py`; random values are drawn once per run. With
    1.0 the computation time is the number of local steps. bandwidth: floats per second and client; null: infinite.
    """

    seconds_per_step: Annotated[ValuePerClient, Doc("virtual seconds of one local step")] = 1.0
    bandwidth: Annotated[float, Gt(0), Doc("floats per second, up and down; null: infinite")] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        key = "seconds_per_step"
        self._seconds = PerClient.parse(self.seconds_per_step, key, _SECONDS, purpose=f"system/{key}")

    def check(self, world: RunContext) -> None:
        """Checks the options against the number of clients N; raises BadValue."""
        self._seconds.check(world.count)

    def round_seconds(
        self,
        steps: Ints,
        up_floats: Floats,
        down_floats: Floats,
        clients: Ints,
        pattern: ExchangePattern,
        world: RunContext,
        links: Floats | float = 0.0,
    ) -> float:
        """Virtual seconds of a round; 0 for an empty cohort.

        clients: the ids of the cohort's C clients [C]. steps: their local steps K_i [C]. up_floats, down_floats: floats
        that each client sends and receives, [C] or one number for all; in a ring, a model that one client passes to
        the next counts once, at its sender. pattern: determines whether clients work in parallel or in sequence.
        links: the seconds for which each client waits for messages, [C] or one number for all.
        """
        if not len(clients):
            return 0.0
        seconds = self._computation(steps, clients, world)
        if self.bandwidth is not None:
            seconds = seconds + (np.asarray(up_floats) + np.asarray(down_floats)) / self.bandwidth
        return pattern.round_seconds(seconds + links)

    def computation_seconds(self, steps: Ints, clients: Ints, world: RunContext) -> float:
        """Total computation of a round in virtual seconds: the sum over the cohort, clients with lost uploads included.

        clients: the ids of the cohort's C clients [C]. steps: their local steps K_i [C].
        """
        return float(self._computation(steps, clients, world).sum())

    def _computation(self, steps: Ints, clients: Ints, world: RunContext) -> Floats:
        return steps * self._seconds.at(0, clients, world)
