"""Looked-up randomness: known answers of Philox, independence of who else is asked, uniformity."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from raylfl.core.keyed import Keyed, keyed, keyed_int, keyed_uniform, philox4x32


def test_philox_gives_the_published_known_answers():
    """Random123's kat_vectors for philox4x32 with ten rounds."""
    zero = np.zeros(1, dtype=np.uint64)
    ones = zero + np.uint64(0xFFFFFFFF)
    words = [int(w[0]) for w in philox4x32([zero] * 4, 0, 0)]
    assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    words = [int(w[0]) for w in philox4x32([ones] * 4, 0xFFFFFFFF, 0xFFFFFFFF)]
    assert words == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


@given(st.integers(0, 2**31), st.integers(0, 10**6), st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_a_clients_number_does_not_depend_on_who_else_is_asked(seed, r, clients):
    together = keyed_uniform(seed, "link", r, np.array(clients))
    alone = [keyed_uniform(seed, "link", r, np.array([c]))[0] for c in clients]
    np.testing.assert_array_equal(together, alone)
    assert ((together > 0) & (together < 1)).all()


def test_numbers_are_uniform_and_differ_between_keys():
    ids = np.arange(20_000)
    u = keyed_uniform(7, "link", 3, ids)
    assert stats.kstest(u, "uniform").pvalue > 0.01
    others = [("link", 4, 0), ("steps", 3, 0), ("link", 3, 1)]
    for purpose, r, lane in others:
        v = keyed_uniform(7, purpose, r, ids, lane)
        assert abs(np.corrcoef(u, v)[0, 1]) < 0.03


def test_generators_of_one_key_agree_and_of_different_keys_do_not():
    assert keyed(1, "batches", 2, 3).random() == keyed(1, "batches", 2, 3).random()
    assert keyed(1, "batches", 2, 3).random() != keyed(1, "batches", 3, 2).random()
    assert 0 <= keyed_int(1, "init") < 2**63
    assert keyed_int(1, "init") != keyed_int(2, "init")


def test_one_generator_for_many_keys_has_the_streams_of_many_generators():
    many = Keyed()
    for ids in [(1, 2), (1, 3), (1, 2), (0,)]:
        ours, theirs = many(7, "batches", *ids), keyed(7, "batches", *ids)
        assert ours.permutation(9).tolist() == theirs.permutation(9).tolist()
        assert ours.integers(2**31, size=3).tolist() == theirs.integers(2**31, size=3).tolist()
        np.testing.assert_array_equal(ours.standard_normal(5), theirs.standard_normal(5))
