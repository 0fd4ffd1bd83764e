"""Keyed randomness: every draw is a function of (seed, purpose, ids...).

Draws do not change with the number of workers, with the order in which workers finish, or when a run is resumed. There
are three forms: `keyed` gives a numpy generator for one key, `keyed_uniform` one number per client, and `keyed_words`
many numbers per client. The last two serve several clients in one call; a client's numbers do not depend on the others.

Sources: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), for Philox; Steele, Lea, Flood, "Fast
splittable pseudorandom number generators" (OOPSLA 2014), for SplitMix64.
"""

import hashlib
from typing import Any

import numpy as np

GAMMA = 0x9E3779B97F4A7C15  # SplitMix64's increment: the distance between consecutive states
_M0, _M1 = 0xD2511F53, 0xCD9E8D57  # Philox4x32 multipliers
_W0, _W1 = 0x9E3779B9, 0xBB67AE85  # Philox4x32 Weyl constants
_LOW = 0xFFFFFFFF


def key_bytes(seed: int, purpose: str, *ids: int) -> bytes:
    """The 16-byte BLAKE2b digest of the key (seed, purpose, ids)."""
    text = "/".join([str(int(seed)), purpose, *map(str, map(int, ids))])
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def keyed(seed: int, purpose: str, *ids: int) -> np.random.Generator:
    """A new Philox generator for the key (seed, purpose, ids), for example `keyed(seed, "batches", r, client)`.

    >>> first = keyed(0, "batches", 3, 7).integers(100, size=4)
    >>> bool((first == keyed(0, "batches", 3, 7).integers(100, size=4)).all())
    True
    """
    key = np.frombuffer(key_bytes(seed, purpose, *ids), dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


def keyed_int(seed: int, purpose: str, *ids: int) -> int:
    """A seed in 0..2^63-1 for the generators of torch or random, a function of the key (seed, purpose, ids)."""
    return int.from_bytes(key_bytes(seed, purpose, *ids)[:8], "little") >> 1


def keyed_uniform(seed: int, purpose: str, r: int, clients: np.ndarray, lane: int = 0) -> np.ndarray:
    """One draw from U(0, 1) for each client, float64 [C]; entry j depends on (seed, purpose, r, clients[j], lane) only.

    r: the round. clients: ids [C]. lane: the number (0, 1, ...) of an independent draw of the same client and round.

    >>> alone, together = (keyed_uniform(0, "link", 3, np.array(ids)) for ids in ([7], [2, 7]))
    >>> bool(alone[0] == together[1])
    True
    """
    key = np.frombuffer(key_bytes(seed, purpose, r), dtype=np.uint32)
    ids = np.asarray(clients, dtype=np.uint64)
    counter = [ids & _LOW, ids >> 32, np.uint64(lane), np.uint64(0)]
    words = philox4x32(counter, int(key[0]), int(key[1]))
    bits: np.ndarray = words[0] >> 6 << 26 | words[1] >> 6  # 52 bits, so that + 0.5 is exact
    return (bits.astype(np.float64) + 0.5) * 2.0**-52


def philox4x32(counter: list[Any], key0: int, key1: int) -> list[Any]:
    """The Philox4x32-10 block function (ten rounds) on arrays of counters (Salmon et al., SC 2011).

    counter: the four 32-bit words of each counter, in uint64 arrays or numbers; the result is four arrays. key0, key1:
    the 32-bit words of the key.
    """
    c0, c1, c2, c3 = counter
    for _ in range(10):
        left, right = _M0 * c0, _M1 * c2
        c0, c1 = (right >> 32) ^ c1 ^ key0, right & _LOW
        c2, c3 = (left >> 32) ^ c3 ^ key1, left & _LOW
        key0, key1 = (key0 + _W0) & _LOW, (key1 + _W1) & _LOW
    return [c0, c1, c2, c3]


def splitmix64(state: np.ndarray) -> np.ndarray:
    """The output function of SplitMix64 on an array of uint64 states, a bijection (Steele et al., OOPSLA 2014)."""
    z = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    result: np.ndarray = z ^ (z >> 31)
    return result


def keyed_words(
    seed: int, purpose: str, r: int, clients: np.ndarray, lanes: np.ndarray | int, places: np.ndarray
) -> np.ndarray:
    """Random uint64 words, in the shape to which numpy broadcasts `clients`, `lanes` and `places`.

    Each word is a function of (seed, purpose, r, client, lane, place): word `place` of the stream `lane` of the client
    in round r. clients: ids -1..2^32 - 2. lanes, places: integers >= 0. The streams are SplitMix64, at a tenth of the
    cost of Philox.
    """
    start = np.frombuffer(key_bytes(seed, purpose, r), dtype=np.uint64)[:1]
    ids = (clients + 1 + (np.asarray(lanes) << 32)).astype(np.uint64)
    return splitmix64(splitmix64(start + ids * GAMMA) + (places + 1).astype(np.uint64) * GAMMA)
