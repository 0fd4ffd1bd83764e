"""Split learning: the clients train the first half of the model, the server the second half.

Sequential split learning (SSL), Li & Lyu, NeurIPS 2023 [2], App. A: the client half passes from client to client.
SplitFed v1, Thapa et al., AAAI 2022: the client halves run in parallel and are averaged.
Symbols as in `raylfl.algorithms`.

State    server x [d], both halves; clients none.
Sent     ssl: the client half down to the first client, from client to client, up from the last; with `relay` down
         to and up from every client.
         splitfed: the client half down and up.
         Both: in every local step the activations at the cut (and the labels) up, their gradient down.
Assumes  the same as `sfl` (ssl) or `fedavg` (splitfed); no connection of the model skips the cut.

    one local step
    client   forward up to the cut
    server   forward from the cut, backward to the cut, SGD step on its half
    client   backward from the cut, SGD step on its half

Two backward passes joined at the cut give the same gradient as one pass through the whole model. The updates of SSL and
SplitFed are therefore bit for bit those of SFL and FedAvg, and the classes of SFL and FedAvg compute them. A probe step
gives the traffic at the cut (`raylfl.core.cut`).
"""

from dataclasses import dataclass, field
from typing import Annotated

from raylfl.algorithms import ALGORITHMS
from raylfl.algorithms.fedavg import FedAvg
from raylfl.algorithms.sfl import SFL
from raylfl.components.options import Doc
from raylfl.core.pattern import Relay

Cut = Annotated[str, Doc("the last layer of the client half, such as layers.relu1")]


@ALGORITHMS.register("ssl", paper="Li & Lyu 2023 [2], App. A")
@dataclass
class SSL(SFL):
    """SSL: sequential split learning, with the same iterates as SFL and the model cut in two."""

    cut: Cut = field(kw_only=True)
    relay: bool = False  # true: the client half passes through the server, the centralised mode of the paper's footnote

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.relay:
            vars(self)["pattern"] = Relay()


@ALGORITHMS.register("splitfed", paper="Thapa et al. 2022")
@dataclass
class SplitFed(FedAvg):
    """SplitFed v1: parallel split learning, with the same iterates as FedAvg and the model cut in two."""

    cut: Cut = field(kw_only=True)
