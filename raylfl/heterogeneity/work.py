"""Local work: the number of steps K_i and the batch size B_i of each client and round.

    steps S_i     K_i = S_i
    epochs E_i    K_i = E_i ceil(n_i/A B_i)
    epochs E_i and a batch size given as a mapping, such as {uniform: [10, null]} (FedAWARE, "Hybrid+")
                  K_i = floor(E_i n_i/min(n_i, A B_i)) >= E_i

S_i and E_i are client i's values of the options steps and epochs, and n_i is its number of samples. B_i is the smaller
of n_i and client i's value of the option batch_size; with batch_size `full`, B_i = n_i. A is the option accumulate, the
number of batches of a local step (`raylfl.core.accumulated`). In Zeng et al. (FedAWARE),
Sec. 5, E_i ~ U{2..5} and B_i ~ U{10..n_i} are redrawn every round. A client without data (n_i = 0) has K_i = B_i = 0
with all options; if it is sampled, it uploads the result of zero steps.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import numpy as np

from raylfl.components.options import Doc, Ge, Options
from raylfl.core.arrays import Ints
from raylfl.errors import BadValue
from raylfl.heterogeneity.values import COUNT, PerClient, ValuePerClient
from raylfl.heterogeneity.world import RunContext

_BATCH = replace(COUNT, open_top=True)
DEFAULT_STEPS = 5


@dataclass
class LocalWork(Options):
    """Options of local steps and batch sizes, part of the config group `local`.

    steps, epochs: one value per client, in the grammar of `values.py`; only one of the two is given, or none for 5
    steps. batch_size: one value per client, or `full` for all n_i samples of client i, or {uniform: [lo, null]} for
    U{lo..n_i}. accumulate: A. dynamic: whether random values are redrawn every round instead of once per run.
    """

    steps: Annotated[ValuePerClient, Doc("local steps K_i; 5 if neither steps nor epochs are given")] = None
    epochs: Annotated[
        ValuePerClient,
        Doc("epochs instead of steps: `K_i = epochs * ceil(n_i / batch_size)`; replaces `steps` of a base"),
    ] = None
    batch_size: Annotated[
        ValuePerClient, Doc("samples per step; also `full`, or `{uniform: [10, null]}` up to n_i")
    ] = 32
    accumulate: Annotated[
        int,
        Ge(1),
        Doc(
            "batches per local step, whose gradients are averaged with their numbers of samples as weights; "
            "`K_i = epochs * ceil(n_i / (accumulate batch_size))`"
        ),
    ] = 1
    dynamic: Annotated[bool, Doc("true: random steps and batch sizes are redrawn every round")] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is not None and self.epochs is not None:
            need = "left out if epochs are given: K_i follows from one of the two"
            raise BadValue("steps", got=f"{self.steps} beside epochs={self.epochs}", need=need)
        if isinstance(self.batch_size, str) and self.batch_size != "full":
            raise BadValue("batch_size", got=self.batch_size, need=f"{COUNT.text}, or full")
        key = "steps" if self.epochs is None else "epochs"
        amount = DEFAULT_STEPS if (given := getattr(self, key)) is None else given
        self._amount = PerClient(amount, key, COUNT, purpose=f"local/{key}", dynamic=self.dynamic)
        batch_size = 1 if self.batch_size == "full" else self.batch_size
        self._batch = PerClient(batch_size, "batch_size", _BATCH, purpose="local/batch_size", dynamic=self.dynamic)

    @property
    def varies(self) -> bool:
        """Whether the local steps or batch sizes of a client can change from round to round."""
        return self._amount.varies or (self._batch.varies and self.batch_size != "full")

    def check(self, world: RunContext) -> None:
        """Checks the options against the number of clients N; raises BadValue."""
        self.draw(0, np.arange(world.count), world)

    def draw(self, r: int, clients: Ints, world: RunContext) -> tuple[Ints, Ints]:
        """Local steps K_i and batch sizes B_i of C clients (ids [C]) in round r, int64 [C] each."""
        sizes = world.population.sizes[clients]
        batch = sizes
        if self.batch_size != "full":
            batch = np.minimum(self._batch.at(r, clients, world, top=sizes.astype(np.float64)), sizes)
        amount, batch = self._amount.at(r, clients, world).astype(np.int64), batch.astype(np.int64)
        steps, divisor = amount, np.maximum(np.minimum(batch * self.accumulate, sizes), 1)
        if self.epochs is not None:
            steps = amount * sizes // divisor if self._batch.form.random else amount * -(-sizes // divisor)
        return np.where(sizes > 0, steps, 0), batch
