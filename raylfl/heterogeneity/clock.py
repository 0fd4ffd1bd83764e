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
        self._seconds = PerClient(self.seconds_per_step, key, _SECONDS, purpose=f"system/{key}")

    def check(self, world: RunContext) -> None:
        """Checks the options against the number of clients N; raises BadValue."""
        self._seconds.at(0, np.arange(world.count), world)

    def computation(self, steps: Ints, clients: Ints, world: RunContext) -> Floats:
        """The virtual seconds of the local steps of C clients (ids [C]), [C]; steps: their local steps K_i [C]."""
        return steps * self._seconds.at(0, clients, world)

    def round_seconds(
        self, computation: Floats, floats: Floats | float, pattern: ExchangePattern, waits: Floats | float = 0.0
    ) -> float:
        """Virtual seconds of a round; 0 for an empty cohort.

        computation: the seconds of each client's local steps [C]. floats: the floats that each client sends and
        receives, [C] or one number for all; in a ring, a model that one client passes to the next counts once, at its
        receiver. pattern: determines whether clients work in parallel or in sequence. waits: the seconds for which each
        client waits for messages, [C] or one number for all.
        """
        if not len(computation):
            return 0.0
        sending = 0.0 if self.bandwidth is None else floats / self.bandwidth
        return pattern.round_seconds(computation + sending + waits)
