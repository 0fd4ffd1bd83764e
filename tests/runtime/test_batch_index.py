"""batch_idx that a step hands on: the calls are followed, and whatever is unclear counts as a use."""

from __future__ import annotations

from functools import wraps
from typing import Any, ClassVar

import pytest

from raylfl.runtime.workers.batch_index import uses_index


def kept(function):
    @wraps(function)
    def wrapper(*args, **kwargs):
        with memoryview(b""):
            return function(*args, **kwargs)

    return wrapper


class Base:
    """A stand-in for a module; its methods that end in `used` use the index."""

    _modules: ClassVar[dict[str, Any]] = {}

    def shared(self, batch, batch_idx, stage="train"):
        x, y = batch
        self.log(f"{stage}_loss", x)
        return x - y

    def shared_used(self, batch, batch_idx, stage="train"):
        x, _y = batch
        return x if batch_idx else 0

    def training_step(self, batch, batch_idx):
        return self.shared(batch, batch_idx, "train")


class Used(Base):
    def training_step(self, batch, batch_idx):
        return self.shared_used(batch, batch_idx, "train")


class BySuper(Base):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        return loss


class BySuperUsed(Used):
    def training_step(self, batch, batch_idx):
        return super().training_step(batch, batch_idx)


class Explicit(Base):
    def training_step(self, batch, batch_idx):
        return super(Explicit, self).training_step(batch, batch_idx)  # noqa: UP008 - users write so


class ExplicitUsed(Used):
    def training_step(self, batch, batch_idx):
        return super(ExplicitUsed, self).training_step(batch, batch_idx)  # noqa: UP008


class All(Base):
    def training_step(self, *args, **kwargs):
        return super().training_step(*args, **kwargs)


class AllUsed(Used):
    def training_step(self, *args, **kwargs):
        return super().training_step(*args, **kwargs)


class Rest(Base):
    def training_step(self, batch, *args):
        return super().training_step(batch, *args)


class RestUsed(Used):
    def training_step(self, batch, *args):
        return super().training_step(batch, *args)


class RestRead(Base):
    def training_step(self, *args):
        return args[1]


class ByClass(Used):
    def training_step(self, batch, batch_idx):
        return Base.training_step(self, batch, batch_idx)


class ByClassUsed(Base):
    def training_step(self, batch, batch_idx):
        return Used.training_step(self, batch, batch_idx)


class OfAnother(Base):
    def training_step(self, batch, batch_idx):
        return Base.training_step(self.other, batch, batch_idx)


class Keyword(Base):
    def training_step(self, batch, batch_idx):
        return self.shared(batch=batch, batch_idx=batch_idx)


class KeywordUsed(Base):
    def training_step(self, batch, batch_idx):
        return self.shared_used(batch, batch_idx=batch_idx, stage="train")


class SwappedKeywords(Base):
    def training_step(self, batch, batch_idx):
        return self.shared(batch=batch_idx, batch_idx=batch)


class Decorated(Base):
    @kept
    def training_step(self, batch, batch_idx):
        return self.shared(batch, batch_idx)


class DecoratedUsed(Base):
    @kept
    def training_step(self, batch, batch_idx):
        return self.shared_used(batch, batch_idx)


class Loops(Base):
    def training_step(self, batch, batch_idx):
        return self.training_step(batch, batch_idx) if batch else 0


class InBranches(Base):
    def training_step(self, batch, batch_idx):
        total = 0
        for part in batch:
            if part:
                total = total + self.shared([part, part], batch_idx, "train")
        return total


class AfterAssignment(Base):
    """In Python 3.13 the assignment and the look-up are one instruction."""

    def training_step(self, batch, batch_idx):
        loss = batch[0]
        if batch_idx == 0:
            loss = 2 * loss
        return loss


class Sums(Base):
    def training_step(self, batch, batch_idx):
        return self.shared(batch, batch_idx + 1)


class Choice(Base):
    def training_step(self, batch, batch_idx):
        return self.shared(batch if batch else None, batch_idx)


class Returns(Base):
    def training_step(self, batch, batch_idx):
        return batch_idx


class Keeps(Base):
    def training_step(self, batch, batch_idx):
        self.index = batch_idx
        return self.shared(batch, batch_idx)


class Inner(Base):
    def training_step(self, batch, batch_idx):
        return [value for value in batch if (lambda: batch_idx)()]


class Foreign(Base):
    def training_step(self, batch, batch_idx):
        return self.unknown(batch, batch_idx)


class OnInstance(Base):
    def __init__(self):
        self.shared = lambda batch, batch_idx, stage: batch_idx


class Packs(Base):
    def training_step(self, batch, batch_idx):
        pair = batch, batch_idx
        return self.shared(*pair)


CASES = {
    **dict.fromkeys((Base, BySuper, Explicit, All, Rest, ByClass, Keyword, Decorated, InBranches), False),
    **dict.fromkeys((Used, BySuperUsed, ExplicitUsed, AllUsed, RestUsed, ByClassUsed, KeywordUsed), True),
    **dict.fromkeys((RestRead, OfAnother, SwappedKeywords, DecoratedUsed, AfterAssignment, Sums, Choice), True),
    **dict.fromkeys((Returns, Keeps, Inner, Foreign, OnInstance, Packs), True),
    Loops: False,
}


@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_an_index_that_is_only_handed_on_is_not_used(kind):
    assert uses_index(kind()) is CASES[kind]
