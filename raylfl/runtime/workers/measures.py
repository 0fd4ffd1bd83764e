"""A worker's measurements: evaluations of the module on chunks of samples, and clients' losses and full gradients."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor

from raylfl.core.algorithm import State
from raylfl.core.arrays import Ints
from raylfl.core.keyed import keyed_int
from raylfl.core.oracle import Batch, private_randomness, seed_everything
from raylfl.core.samples import BatchSource
from raylfl.core.torch_state import torch_defaults
from raylfl.experiment.parts import BUFFERS, WorkerSetup
from raylfl.runtime.workers.attributes import Attributes
from raylfl.runtime.workers.evaluate import Evaluator
from raylfl.runtime.workers.full_gradients import FullGradients
from raylfl.runtime.workers.logged import Logged
from raylfl.runtime.workers.task import Chunk


class ModelMeasures:
    """Evaluates the module, and computes clients' losses and full gradients, at the parameters of a broadcast.

    Afterwards the module is in evaluation mode.
    """

    def __init__(
        self,
        setup: WorkerSetup,
        evaluator: Evaluator,
        attributes: Attributes,
        sources: Mapping[str, BatchSource | None],
        full: FullGradients,
    ):
        """Measurements of the worker's module.

        sources: kind of data (test, val, train) -> its source, None if there are no data of that kind. full: computes
        full gradients of the same module.
        """
        self.setup, self.evaluator, self.attributes = setup, evaluator, attributes
        self.sources, self.full, self.loop, self.flat = sources, full, full.loop, full.loop.flat
        self._of_clients = replace(full, reset=attributes.restore)

    def load(self, broadcast: State) -> None:
        """Loads the parameters of a broadcast into the module, and its buffers: the initial ones if it has none."""
        self.flat.load(broadcast["x"].to(self.flat.params.device))
        self._reset(broadcast)

    def _reset(self, broadcast: State) -> None:
        """Restores the module's attributes, and the buffers of the broadcast: no measurement affects the next."""
        self.attributes.restore()
        buffers = broadcast.get(BUFFERS)
        self.flat.write_buffers(None if buffers is None else buffers.to(self.flat.params.device))

    @torch_defaults()
    def evaluate(self, broadcast: State, chunks: Sequence[Chunk]) -> list[Logged]:
        """Evaluates the broadcast model; returns the values that the module logs over each chunk."""
        self.load(broadcast)
        self.flat.module.eval()
        with private_randomness(), self.loop.autocast():
            return [self._measure(chunk, broadcast) for chunk in chunks]

    def _measure(self, chunk: Chunk, broadcast: State) -> Logged:
        self._reset(broadcast)
        self._seed(chunk.indices)
        with self.loop.evaluating():
            return self.evaluator.measure(chunk.kind, self._batches(chunk), chunk.first)

    def _batches(self, chunk: Chunk) -> Iterator[Batch]:
        source, size = self.sources[chunk.kind], self.setup.eval_batch_size
        assert source is not None
        for k in range(0, len(chunk.indices), size):
            part = chunk.indices[k : k + size]
            self._seed(part)
            yield source.batch(part)

    def _seed(self, samples: Ints) -> None:
        """Seeds the global random generators by the run's seed and the first of these indices, not by the worker."""
        seed_everything(keyed_int(self.setup.seed, "evaluate", *samples[:1]))

    @torch_defaults()
    def objective(self, broadcast: State, groups: Sequence[Sequence[int]]) -> list[tuple[float, Tensor]]:
        """For each group of clients i: (sum w_i f_i(x), sum w_i grad f_i(x) [d]).

        x: the broadcast model; w_i: importance weights; f_i: mean loss over all samples of client i.
        """
        weights = self.setup.population.weights
        with self._at(broadcast) as x:
            sums = [self._of_clients.of(x, group, weights[list(group)]) for group in groups]
            return [(loss, gradient.cpu()) for loss, gradient in sums]

    @torch_defaults()
    def client_objectives(self, broadcast: State, clients: Sequence[int]) -> list[tuple[float, Tensor]]:
        """(f_i(x), grad f_i(x) [d]) of each client i.

        x: the broadcast model; f_i: mean loss over all samples of client i.
        """
        with self._at(broadcast) as x:
            found = [self._of_clients.of_client(x, client) for client in clients]
            return [(float(loss), gradient.cpu()) for loss, gradient in found]

    @contextmanager
    def _at(self, broadcast: State) -> Iterator[Tensor]:
        """A context with a broadcast's parameters and buffers in the module; gives a copy of the parameters [d]."""
        self.load(broadcast)
        with private_randomness(keyed_int(self.setup.seed, "evaluate")):
            yield self.flat.params.clone()
