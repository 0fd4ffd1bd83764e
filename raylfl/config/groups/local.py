"""The keys of the config group `local`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from raylfl.components.options import Doc, Ge, Gt, Lt, UsedWith
from raylfl.config.components import make_typed
from raylfl.core.local_optimizer import SGD, AdamW, LocalOptimizer
from raylfl.core.local_rule import LocalRule
from raylfl.errors import BadConfig, BadValue
from raylfl.heterogeneity.work import LocalWork

ADAMW = UsedWith("optimizer", ("adamw",))
# papers with bounds on the step size, numbered as in docs/theory.md
PAPERS = {"focus": "[1]", "sfl": "[2]", "fedacs": "[3]", "fedaware": "[4]"}


@dataclass
class LocalConfig(LocalRule, LocalWork):
    """`local`: the local steps of a client in a round, and their optimizer."""

    lr: Annotated[
        float,
        Gt(0),
        Doc("the local learning rate eta; or `{theory: focus}`, also `sfl`, `fedacs`, `fedaware`: see lr_from"),
    ] = 0.1
    sampling: Annotated[
        Literal["reshuffle", "with_replacement"], Doc("a new order of the samples in every epoch, or independent draws")
    ] = "reshuffle"
    optimizer: Annotated[
        Literal["sgd", "adamw", "module"],
        Doc("module: the module's own `configure_optimizers`, which then sets lr, momentum and weight decay"),
    ] = "sgd"
    b1: Annotated[float, Ge(0), Lt(1), Doc("the decay of the first moment"), ADAMW] = 0.9
    b2: Annotated[float, Ge(0), Lt(1), Doc("the decay of the second moment"), ADAMW] = 0.999
    eps: Annotated[float, Gt(0), Doc("the term added to the root of the second moment"), ADAMW] = 1e-8
    optimizer_state: Annotated[
        Literal["fresh", "kept", "averaged"],
        Doc(
            "state of the local optimizer: 0 in every round, kept by each client between its rounds, or sent with "
            "the model and averaged with weights `w_i`"
        ),
    ] = "fresh"
    buffers: Annotated[
        Literal["average", "local"],
        Doc("buffers such as BatchNorm statistics: averaged over the received clients, or kept by each client"),
    ] = "average"
    lr_from: Annotated[
        str | None,
        Doc(
            "the theorem that gave lr; written for a config with `lr: {theory: focus}` (`sfl`, ...): the "
            "largest step size that the paper's theorem admits for the method ([theory.md](theory.md))"
        ),
    ] = None
    lr_by_theory: str | None = field(default=None, init=False)  # the paper that determines lr, until lr is computed

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lr_from is not None and not self.lr_from.endswith(f": {self.lr!r}"):
            self.lr_from = None  # lr was set to another value later
        if self.optimizer != "sgd" and self.momentum:
            raise BadValue("momentum", got=self.momentum, need="0", hint=f"optimizer={self.optimizer} has its own")
        if self.optimizer == "module" and self.weight_decay:
            raise BadValue("weight_decay", got=self.weight_decay, need="0", hint="optimizer=module has its own")
        if self.optimizer_state != "fresh" and self.optimizer == "sgd" and not self.momentum:
            raise BadValue(
                "optimizer_state",
                got=self.optimizer_state,
                need="fresh",
                hint="sgd without momentum keeps nothing: set momentum, or another optimizer",
            )

    @classmethod
    def by_theory(cls, options: Mapping[str, Any]) -> LocalConfig:
        """An instance from options with `lr: {theory: PAPER}`; lr is nan until `raylfl.theory.summary` computes it."""
        need = f"a number, or {{theory: PAPER}}, PAPER being one of {', '.join(PAPERS)}"
        lr = options["lr"]
        for key in map(str, lr):
            if key.startswith("theory:"):
                raise BadConfig(f"local.lr={{{key}}}, but a blank is missing after the colon: {{theory: {key[7:]}}}")
        if set(lr) != {"theory"} or lr["theory"] not in PAPERS:
            raise BadConfig(f"local.lr={dict(lr)}, but must be {need}")
        made = make_typed(cls, {key: value for key, value in options.items() if key not in ("lr", "lr_from")}, "local")
        made.lr, made.lr_by_theory = float("nan"), lr["theory"]
        return made

    def set_lr(self, lr: float, source: str | None) -> None:
        """Sets lr to a computed number; source: the theorem that gave it, recorded in lr_from."""
        self.lr, self.lr_by_theory = lr, None
        self.lr_from = None if source is None else f"{source}: {lr!r}"

    @property
    def inner(self) -> LocalOptimizer:
        """The local optimizer: AdamW, or SGD with momentum; not used with `optimizer: module`."""
        if self.optimizer == "adamw":
            return AdamW(self.b1, self.b2, self.eps, self.weight_decay)
        return SGD(self.momentum)
