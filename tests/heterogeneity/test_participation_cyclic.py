"""Groups that take turns, and sweeps over all clients: every client takes part equally often."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.heterogeneity.draws import COUNT, ROUNDS, Z, build, draws_of, world


@given(groups=st.integers(1, 9), extra=st.integers(0, 8), epoch=st.integers(0, 5), reshuffle=st.booleans())
def test_an_epoch_of_cyclic_passes_every_group_once(groups, extra, epoch, reshuffle):
    where = world(count=groups + extra)
    process = build("cyclic", groups=groups, size=1, reshuffle=reshuffle)
    seen = [process.group(epoch * groups + turn, where).tolist() for turn in range(groups)]
    assert sorted(i for group in seen for i in group) == list(range(groups + extra))
    assert max(map(len, seen)) - min(map(len, seen)) <= 1
    for turn in range(groups):
        r = epoch * groups + turn
        assert process.draw(r, where).cohort[0] in seen[turn]


def test_cyclic_reshuffles_the_groups_every_epoch_or_never():
    def orders(**options):
        process = build("cyclic", groups=6, size=1, **options)
        return {tuple(int(process.group(e * 6 + t, world())[0]) for t in range(6)) for e in range(30)}

    assert len(orders()) > 20
    assert len(orders(reshuffle=False)) == 1


def test_one_group_is_uniform_sampling_and_n_groups_are_one_client_after_the_other():
    asked = draws_of(build("cyclic", groups=1, size=3), world())
    assert (abs(asked.mean(axis=0) - 0.25) < Z * math.sqrt(0.25 * 0.75 / ROUNDS)).all()
    one_by_one = build("cyclic", groups=COUNT, size=1)
    one_by_one.check(world())
    ring = draws_of(one_by_one, world(), COUNT * 5)
    assert (ring.reshape(5, COUNT, COUNT).sum(axis=1) == 1).all()


@pytest.mark.parametrize("size", [1, 3, 4, 12])
def test_a_pass_samples_every_client_once_and_the_next_pass_in_the_same_order(size):
    asked = draws_of(build("permutation", size=size), world(), 3 * COUNT // size)
    sweeps = asked.reshape(3, COUNT // size, COUNT)
    assert (sweeps.sum(axis=1) == 1).all()
    assert (sweeps == sweeps[0]).all()


@given(size=st.integers(1, 12), first=st.integers(0, 50))
def test_a_permutation_samples_all_clients_equally_often_over_n_rounds(size, first):
    process = build("permutation", size=size)
    asked = [process.draw(r, world()).cohort for r in range(first, first + COUNT)]
    assert np.bincount(np.concatenate(asked), minlength=COUNT).tolist() == [size] * COUNT
