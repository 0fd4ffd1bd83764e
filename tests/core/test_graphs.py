"""Recorded steps as graphs, with a stand-in for CUDA's graphs: fixed memory, and failed captures."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

import raylfl
from raylfl.core.recorded import graphs
from raylfl.core.recorded.graphs import WARM_UP, Captured, capture_on_cuda
from raylfl.core.recorded.steps import RecordedSteps
from tests.core import user_modules as users
from tests.core.test_recorded import check_bits
from tests.runtime.tiny import TINY


def captured_by_hand(function):
    """A stand-in for a graph: the results of every replay are the tensors of the first."""
    first = function()

    def replay():
        for old, new in zip(first, function(), strict=True):
            old.copy_(new)

    return replay, first


def steps_with(monkeypatch, capture):
    plain = RecordedSteps.__init__

    def init(self, *args, **options):
        plain(self, *args, **options)
        self.captures = capture

    monkeypatch.setattr(RecordedSteps, "__init__", init)


@pytest.mark.parametrize("kind", [users.Residual, users.InPlace, users.Images], ids=lambda kind: kind.__name__)
def test_graphs_have_the_bits_of_autograd(monkeypatch, kind):
    """The bits include buffers and random draws, which warm-up and capture change."""
    steps_with(monkeypatch, captured_by_hand)
    recorded, replayed = check_bits(kind, steps=16)
    assert replayed == 6
    assert all(isinstance(kind.program, Captured) for kind in recorded.kinds.values())
    assert recorded.no_graph is None


def test_a_capture_follows_steps_on_a_stream_of_its_own(monkeypatch):
    """Stand-ins for CUDA's streams and graphs record the stream of each call of the step."""
    places, waits, made, given = ["current"], [], [], []

    class Stream:
        def __init__(self, name="aside"):
            self.name = name

        def wait_stream(self, other):
            waits.append((self.name, other.name, len(made)))

    @contextmanager
    def within(name):
        places.append(name)
        yield
        places.pop()

    def step():
        made.append(places[-1])
        return (torch.tensor(len(made)),)

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream("current"))
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: within(stream.name))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay="replay"))
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: "shared")
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **options: given.append(options) or within("graph"))
    graphs._pool.cache_clear()
    replay, (result,) = capture_on_cuda(step)
    assert made == ["aside"] * WARM_UP + ["graph"]
    assert waits == [("aside", "current", 0), ("current", "aside", WARM_UP)]
    assert (replay, result.item()) == ("replay", WARM_UP + 1)
    assert given == [{"pool": "shared", "capture_error_mode": "thread_local"}]
    graphs._pool.cache_clear()


@pytest.mark.parametrize("leaf", [torch.randn(4, 9)[:, 1:7], torch.randn(6, 4).T, torch.randn(1, 6).expand(4, 6)])
def test_a_graph_reads_copies_with_the_strides_of_the_batch(leaf):
    program = SimpleNamespace(draws=False, logs=False, modes=[])
    (copy,) = Captured(program, [leaf], torch.empty(3), lambda function: (None, ()))._leaves
    assert torch.equal(copy, leaf)
    assert copy.data_ptr() != leaf.data_ptr()
    assert copy.stride() == leaf.stride() or 0 in leaf.stride()


def test_a_step_that_cannot_be_captured_is_replayed_call_by_call(monkeypatch):
    def capture(function):
        function()
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    steps_with(monkeypatch, capture)
    recorded, replayed = check_bits(users.Residual, steps=16)
    assert replayed == 6
    assert not any(isinstance(kind.program, Captured) for kind in recorded.kinds.values())
    assert recorded.no_graph == "the capture failed (operation not permitted when stream is capturing)"


def test_a_graph_with_other_bits_is_not_used(monkeypatch):
    def capture(function):
        replay, results = captured_by_hand(function)
        return lambda: (replay(), results[0].add_(1)), results

    steps_with(monkeypatch, capture)
    recorded, replayed = check_bits(users.Residual, steps=16)
    assert replayed == 6
    assert recorded.refusal is None
    assert recorded.no_graph == "the graph does not have autograd's bits when it is replayed"


def test_a_compiled_training_step_is_an_option(runs):
    """The backend needs no C++ compiler; it has the same operators, and therefore the same numbers."""
    overrides = ["rounds=2", "runtime.vectorize=never"]
    plain = raylfl.run(TINY, [*runs, *overrides])
    compiled = raylfl.run(TINY, [*runs, *overrides, "runtime.compile=eager"])
    assert torch.allclose(plain.params, compiled.params, atol=1e-6)
    assert [row["why"] for row in compiled.summary["local_steps"]] == ["runtime.compile=eager"]
