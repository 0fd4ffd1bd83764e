"""Lanes on the host that behave as CUDA graphs: a capture keeps the operators and addresses, and nothing of Python.

As under a capture on a card, operators that would wait for the device raise, and no kernel runs.
"""

import itertools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

aten = torch.ops.aten
READS = {aten._local_scalar_dense.default, aten.equal.default, aten.nonzero.default, aten.masked_select.default}


class Tape(TorchDispatchMode):
    """Records operators with their arguments and results; keeps the values that they overwrite."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # torch would import its compiler, and call it for each operation

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple] = []
        self.written: dict[int, tuple[Tensor, Tensor]] = {}  # overwritten memory, and its values before

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function in READS:
            raise RuntimeError("operation not permitted when stream is capturing")
        if function._schema.is_mutable:
            for value in tree_leaves((args, kwargs or {})):
                if isinstance(value, Tensor):
                    whole = value.detach().new_empty(0).set_(value.untyped_storage())
                    self.written.setdefault(value.untyped_storage().data_ptr(), (whole, whole.clone()))
        result = function(*args, **(kwargs or {}))
        # aliases: the address, not the object, whose memory may be replaced
        self.calls.append(tree_map_only(Tensor, torch.detach, (function, args, kwargs or {}, result)))
        return result

    def replay(self) -> None:
        with torch.no_grad():
            for function, args, kwargs, result in self.calls:
                again = function(*args, **kwargs)
                for old, new in zip(tree_leaves(result), tree_leaves(again), strict=True):
                    if isinstance(old, Tensor) and old.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                        old.copy_(new)


class EmulatedLanes:
    """`captures` and `replays` count both; `shared_operators`: before and after the functions of a joint graph."""

    def __init__(self, count: int = 3):
        self.count, self.captures, self.replays, self.current = count, 0, 0, -1
        self.seeds: list[int] = []
        self.joint = 0

    def fork(self, count: int) -> None:
        self.current = -1

    def join(self) -> None:
        self.current = -1

    def on(self, lane: int) -> None:
        self.current = lane

    def capture(self, lane: int, function: Callable[[], object]) -> Callable[[], None]:
        assert lane == self.current
        tape = self._taped(function)

        def replay() -> None:
            assert lane == self.current
            self.replays += 1
            tape.replay()

        return replay

    def capture_all(self, functions, before, after) -> Callable[[], None]:
        assert self.current == -1
        first, *tapes, last = (self._taped(function) for function in (before, *functions, after))
        self.shared_operators = len(first.calls), len(last.calls)

        def replay() -> None:
            assert self.current == -1
            self.replays, self.joint = self.replays + 1, self.joint + 1
            first.replay()
            for tape, seed in itertools.zip_longest(tapes, self.seeds):
                if seed is not None:
                    torch.manual_seed(seed)
                if tape is not None:
                    tape.replay()
            last.replay()

        return replay

    def _taped(self, function) -> Tape:
        tape, before = Tape(), torch.get_rng_state()
        with tape:
            function()
        for tensor, value in tape.written.values():
            tensor.copy_(value)
        torch.set_rng_state(before)
        self.captures += 1
        return tape

    def seed_all(self, seeds) -> None:
        self.seeds = list(seeds)

    def settle(self) -> None:
        pass

    def forget(self) -> None:
        pass

    def seed(self, lane: int, seed: int) -> None:
        torch.manual_seed(seed)

    def draws(self) -> Callable[[], bool]:
        before = torch.get_rng_state()
        return lambda: not torch.equal(before, torch.get_rng_state())
