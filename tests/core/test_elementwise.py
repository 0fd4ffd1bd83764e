"""Elementwise steps in blocks."""

import pytest
import torch

from raylfl.core.elementwise import SPAN, elementwise


@pytest.mark.parametrize("width", [1, SPAN, SPAN + 1, 3 * SPAN + 7])
def test_blocks_have_the_bits_of_the_whole_vector(width):
    """Two results of three vectors; the inputs are unchanged."""
    vectors = list(torch.randn(3, width, generator=torch.Generator().manual_seed(width)).unbind())
    before = [v.clone() for v in vectors]

    def step(x, m, u):
        m = 0.9 * m + u
        return x - 0.1 * m / (m.square().sqrt() + 1e-3), m

    for ours, whole in zip(elementwise(step, *vectors), step(*vectors), strict=True):
        assert torch.equal(ours, whole)
    assert all(map(torch.equal, vectors, before))
