"""CUDA's lanes on a stand-in for torch.cuda: which stream waits for which, and which memory a graph gets."""

from itertools import count
from types import SimpleNamespace

import pytest
import torch

from raylfl.core.lanes import Lanes


class Stream:
    """A stream; `waits` are the streams whose work it waits for."""

    def __init__(self, *device):
        self.waits = []

    def wait_stream(self, other):
        self.waits.append(other)


@pytest.fixture
def cuda(monkeypatch):
    """A stand-in for torch.cuda: `failing` graphs raise in `capture_begin`."""
    state = SimpleNamespace(current=Stream(), failing=False, pools=[], handles=count())

    class Graph:
        def capture_begin(self, pool, capture_error_mode):
            if state.failing:
                raise RuntimeError("operation not permitted when stream is capturing")
            state.pools.append(pool)

        def capture_end(self):
            if state.failing:
                raise RuntimeError("no capture")

        def register_generator_state(self, generator):
            pass

        def replay(self):
            pass

    class Generator:
        def __init__(self, *device):
            pass

        def graphsafe_get_state(self):
            return self

        def graphsafe_set_state(self, state):
            pass

    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", lambda *pool: None, raising=False)  # of CUDA builds
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: next(state.handles))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda *device: state.current)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: setattr(state, "current", stream))
    monkeypatch.setattr(torch.cuda, "default_generators", [Generator()])
    monkeypatch.setattr(torch, "Generator", Generator)
    return state


def lanes():
    return Lanes(torch.device("cuda", 0), 3)


def test_lanes_begin_after_the_main_stream_and_it_goes_on_after_them(cuda):
    main, three = cuda.current, lanes()
    three.fork(2)  # of which the third has nothing to do
    three.on(1)
    three.join()
    assert cuda.current is main
    assert [stream.waits for stream in three.streams] == [[main], [main], []]
    assert main.waits == three.streams[:2]


def test_after_a_failed_capture_the_lanes_new_stream_waits_for_the_old_one(cuda):
    """The steps that the lane has taken so far are on the old stream, and `join` knows the new one only."""
    three = lanes()
    three.fork(3)
    three.on(1)
    old, cuda.failing = three.streams[1], True
    with pytest.raises(RuntimeError, match="capturing"):
        three.capture(1, lambda: None)
    assert three.streams[1] is not old
    assert three.streams[1].waits == [old]
    assert cuda.current is three.streams[1]
    three.join()
    assert cuda.current.waits == three.streams


def test_graphs_after_dropped_ones_have_memory_of_their_own(cuda):
    """The allocator refuses the handle of a pool whose graphs are gone."""
    three = lanes()
    three.capture(0, lambda: None)
    three.capture_all([lambda: None] * 4)
    three.forget()
    three.capture(0, lambda: None)
    three.capture_all([lambda: None] * 4)
    assert len(set(cuda.pools)) == 4


def test_a_joint_graph_begins_and_ends_on_one_stream(cuda):
    main, three = cuda.current, lanes()
    seen = []
    three.capture_all([lambda: seen.append(cuda.current)] * 4)
    assert seen == [*three.streams, three.streams[0]]
    whole = three._all[0]
    assert all(stream.waits == [whole] for stream in three.streams)
    assert whole.waits == [main, *three.streams]
    assert cuda.current is main
