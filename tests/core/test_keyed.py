"""Keyed randomness: known answers of Philox, independence of the other clients."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylfl.core import keyed as module
from raylfl.core.keyed import keyed, keyed_int, keyed_uniform, keyed_words, philox4x32, splitmix64


def test_philox_gives_the_published_known_answers():
    """Random123's kat_vectors for philox4x32 with ten rounds."""
    zero = np.zeros(1, dtype=np.uint64)
    ones = zero + np.uint64(0xFFFFFFFF)
    words = [int(w[0]) for w in philox4x32([zero] * 4, 0, 0)]
    assert words == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    words = [int(w[0]) for w in philox4x32([ones] * 4, 0xFFFFFFFF, 0xFFFFFFFF)]
    assert words == [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]


@given(st.integers(0, 2**31), st.integers(0, 10**6), st.lists(st.integers(0, 10**9), min_size=1, max_size=20))
def test_a_clients_number_does_not_depend_on_the_other_clients(seed, r, clients):
    together = keyed_uniform(seed, "link", r, np.array(clients))
    alone = [keyed_uniform(seed, "link", r, np.array([c]))[0] for c in clients]
    np.testing.assert_array_equal(together, alone)
    assert ((together > 0) & (together < 1)).all()


@pytest.mark.parametrize(("word", "expected"), [(0, 2.0**-53), (2**32 - 1, 1 - 2.0**-53)])
def test_the_extreme_numbers_are_as_far_from_0_as_from_1(monkeypatch, word, expected):
    monkeypatch.setattr(module, "philox4x32", lambda counter, *keys: [np.full(3, word, dtype=np.uint64)] * 4)
    assert keyed_uniform(0, "link", 0, np.arange(3)).tolist() == [expected] * 3


def test_generators_of_one_key_agree_and_of_different_keys_do_not():
    assert keyed(1, "batches", 2, 3).random() == keyed(1, "batches", 2, 3).random()
    assert keyed(1, "batches", 2, 3).random() != keyed(1, "batches", 3, 2).random()
    assert 0 <= keyed_int(1, "init") < 2**63
    assert keyed_int(1, "init") != keyed_int(2, "init")


def test_splitmix_gives_the_known_outputs_of_its_reference_implementation():
    """The first outputs of java.util.SplittableRandom's successor, splitmix64.c, from state 1234567."""
    gamma = np.uint64(0x9E3779B97F4A7C15)
    states = np.uint64(1234567) + np.arange(1, 6, dtype=np.uint64) * gamma
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821]
    assert splitmix64(states).tolist() == known


@given(st.integers(0, 2**31), st.integers(0, 10**6), st.lists(st.integers(-1, 10**9), min_size=1, max_size=9))
def test_a_clients_words_do_not_depend_on_the_other_clients_or_their_number(seed, r, clients):
    together = keyed_words(seed, "batches", r, np.array(clients)[:, None], 3, np.arange(7))
    assert together.shape == (len(clients), 7)
    for c, row in zip(clients, together, strict=True):
        alone = keyed_words(seed, "batches", r, np.array([c]), 3, np.arange(5))
        assert row[:5].tolist() == alone.tolist()
        assert row[6:].tolist() == keyed_words(seed, "batches", r, np.array([c]), np.array([3]), np.array([6])).tolist()
