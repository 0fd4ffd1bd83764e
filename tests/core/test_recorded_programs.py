"""Random programs: the recorded step has autograd's bits for each of them, nearly always in fixed memory."""

import pytest

from tests.core.random_programs import Program
from tests.core.test_recorded import check_bits
from tests.shares import one_in


@pytest.mark.parametrize("first", one_in(6, range(0, 60, 10)))
def test_random_programs_have_the_bits_of_autograd(first):
    """A program loses its fixed memory, but keeps its bits, if a comparison with autograd finds others there."""
    fixed = 0
    for seed in range(first, first + 10):
        recorded, replayed = check_bits(lambda seed=seed: Program(seed), steps=8, sizes=(4, 5, 4, 4))
        assert recorded.refusal is None, [name for name, *_ in Program(seed).calls]
        assert replayed > 0
        fixed += all(kind.program.arena is not None for kind in recorded.kinds.values() if kind.program is not None)
    assert fixed >= 9
