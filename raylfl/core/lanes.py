"""Lanes of a GPU: streams that run beside each other, each with CUDA graphs, memory and a random generator of its own.

A CUDA graph repeats the kernels of a function, with the same addresses, by one launch. Graphs of one lane run one after
the other, so that they share the memory of their intermediate values; graphs of different lanes run at the same time.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

LANES = 16  # streams of a worker; as many small kernels fill a card


class Lanes:
    """The lanes of a CUDA device: `count` lanes, numbered from 0."""

    def __init__(self, device: torch.device, count: int = LANES):
        self.count, self.device = count, device
        self.streams = [torch.cuda.Stream(device) for _ in range(count)]
        self.pools = [torch.cuda.graph_pool_handle() for _ in range(count)]
        self.generators = [torch.Generator(device) for _ in range(count)]
        self._main: torch.cuda.Stream | None = None
        self._forked = 0  # lanes at work
        self._all = torch.cuda.Stream(device), torch.cuda.graph_pool_handle()
        self._by_function: list[torch.Generator] = []

    def fork(self, count: int) -> None:
        """Makes the first `count` lanes, or all, wait for the work in flight on the device's current stream."""
        self._main, self._forked = torch.cuda.current_stream(self.device), count
        for stream in self.streams[:count]:
            stream.wait_stream(self._main)

    def join(self) -> None:
        """Makes the device's current stream wait for the work of the lanes since `fork`."""
        assert self._main is not None
        torch.cuda.set_stream(self._main)
        for stream in self.streams[: self._forked]:
            self._main.wait_stream(stream)

    def on(self, lane: int) -> None:
        """Makes this lane the current stream, until `join` or `on` is called."""
        torch.cuda.set_stream(self.streams[lane])

    def capture(self, lane: int, function: Callable[[], object]) -> Callable[[], None]:
        """A function that repeats the kernels of `function`, which runs once without its kernels.

        The lane must be the current stream. Raises RuntimeError if the function cannot be captured, for example because
        it reads a tensor's values.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            with self._drawing_from(lane):
                # thread_local: CUDA calls of other threads, such as a loader's, do not end the capture
                graph.capture_begin(pool=self.pools[lane], capture_error_mode="thread_local")
                function()
                graph.capture_end()
        except BaseException:
            self._forget(lane, graph)
            raise
        return graph.replay

    def capture_all(
        self,
        functions: Sequence[Callable[[], object]],
        before: Callable[[], object] = lambda: None,
        after: Callable[[], object] = lambda: None,
    ) -> Callable[[], None]:
        """Like `capture`, for functions that one graph runs at the same time, between `before` and `after`.

        Function k is captured on lane k modulo `count`. The caller must have called `join`.
        """
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream(self.device)
        stream, pool = self._all
        default = torch.cuda.default_generators[self.device.index or 0]
        generator_state = default.graphsafe_get_state()
        while len(self._by_function) < len(functions):
            self._by_function.append(torch.Generator(self.device))
        for generator in self._by_function[: len(functions)]:
            graph.register_generator_state(generator)
        stream.wait_stream(current)
        torch.cuda.set_stream(stream)
        try:
            default.graphsafe_set_state(self._by_function[0])  # a failed capture may leave a generator unusable
            graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            before()
            for lane in self.streams:
                lane.wait_stream(stream)
            for k, function in enumerate(functions):
                torch.cuda.set_stream(self.streams[k % self.count])
                default.graphsafe_set_state(self._by_function[k])
                function()
            torch.cuda.set_stream(stream)
            for lane in self.streams:
                stream.wait_stream(lane)
            after()
            graph.capture_end()
        except BaseException:
            torch.cuda.set_stream(stream)  # a capture ends on the stream on which it began, after all others
            with suppress(RuntimeError):
                for lane in self.streams:
                    stream.wait_stream(lane)
            self._abandon(graph, pool)
            self.__init__(self.device, self.count)  # type: ignore[misc]
            raise
        finally:
            default.graphsafe_set_state(generator_state)
            torch.cuda.set_stream(current)
        return graph.replay

    def _abandon(self, graph: torch.cuda.CUDAGraph, pool: Any) -> None:
        """Ends a capture that has failed; if torch cannot end it, at least its allocations no longer go to the pool."""
        try:
            graph.capture_end()
        except RuntimeError:
            with suppress(RuntimeError, AttributeError):
                torch._C._cuda_endAllocateToPool(self.device.index or 0, pool)

    def _forget(self, lane: int, graph: torch.cuda.CUDAGraph) -> None:
        """Ends a capture that failed; its stream, memory and generator may be left in the middle of it."""
        self._abandon(graph, self.pools[lane])
        failed, self.streams[lane] = self.streams[lane], torch.cuda.Stream(self.device)
        self.streams[lane].wait_stream(failed)  # the earlier steps of the lane's clients
        self.pools[lane] = torch.cuda.graph_pool_handle()
        self.generators[lane] = torch.Generator(self.device)
        torch.cuda.set_stream(self.streams[lane])

    @contextmanager
    def _drawing_from(self, lane: int) -> Iterator[None]:
        """A context in which the device's default generator has the state of the lane's generator."""
        default = torch.cuda.default_generators[self.device.index or 0]
        generator_state = default.graphsafe_get_state()
        default.graphsafe_set_state(self.generators[lane])
        try:
            yield
        finally:
            default.graphsafe_set_state(generator_state)

    def settle(self) -> None:
        """Makes all lanes wait for the work in flight on the current one, such as the making of shared memory."""
        current = torch.cuda.current_stream(self.device)
        for stream in self.streams:
            stream.wait_stream(current)

    def forget(self) -> None:
        """Called after graphs were dropped; later ones get new memory, as that of dropped graphs is gone."""
        self.pools = [torch.cuda.graph_pool_handle() for _ in range(self.count)]
        self._all = self._all[0], torch.cuda.graph_pool_handle()

    def seed(self, lane: int, seed: int) -> None:
        """Seeds the generator of the lane's graphs; it draws the numbers of the device's generator with this seed."""
        self.generators[lane].manual_seed(seed)

    def seed_all(self, seeds: Sequence[int]) -> None:
        """Seeds the generators of the functions of graphs from `capture_all`, one for each function."""
        for generator, seed in zip(self._by_function, seeds, strict=False):
            generator.manual_seed(seed)

    def draws(self) -> Callable[[], bool]:
        """A function that tells whether the device's own generator has been used since this call."""
        default = torch.cuda.default_generators[self.device.index or 0]
        offset = default.get_offset()
        return lambda: default.get_offset() != offset


def lanes_of(device: torch.device) -> Lanes | None:
    """The lanes of a device; None for a device whose work is not asynchronous."""
    return Lanes(device) if device.type == "cuda" else None
