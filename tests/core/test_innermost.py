"""Matrix products over patches against autograd: equal loss and gradient up to rounding, in any batch."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

from raylfl.config.load import load_config
from raylfl.core.flat import FlatModule
from raylfl.core.oracle import Batch, LoopOracle
from raylfl.core.vectorized import VectorizedOracle
from raylfl.experiment.assemble import assemble
from raylfl.models import MODELS
from raylfl.replay.innermost.steps import InnermostSteps
from raylfl.replay.innermost.translation import IGNORED
from raylfl.replay.proof import Diverged
from raylfl.runtime.workers.backend import LocalBackend
from raylfl.runtime.workers.task import Chunk

CPU = torch.device("cpu")


class Net(nn.Module):
    """A module whose loss is the cross-entropy of these layers."""

    def __init__(self, *layers):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def training_step(self, batch, batch_idx):
        return nn.functional.cross_entropy(self.layers(batch[0]), batch[1])


def lenet():
    return MODELS.get("lenet5").cls(in_shape=(1, 28, 28)), (1, 28, 28)


def padded():
    """A network with padding on two sides and on one, a kernel that is not square, and a pool that drops a row."""
    layers = [nn.Conv2d(2, 3, (3, 2), padding=(2, 1)), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3, padding=(1, 0))]
    return Net(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 5 * 2, 3)), (2, 8, 7)


def overlapping():
    """A network with overlapping pool windows, two successive convolutions, and no hidden dense layer."""
    layers = [nn.Conv2d(1, 4, 3), nn.Conv2d(4, 5, 2), nn.MaxPool2d(3, 2), nn.ReLU(), nn.Flatten()]
    return Net(*layers, nn.Linear(5 * 3 * 3, 4)), (1, 10, 10)


def pooled_first():
    return Net(nn.MaxPool2d(2), nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 9, 5)), (1, 10, 10)


def both(build, dtype):
    torch.manual_seed(0)
    module, shape = build()
    flat = FlatModule(module, dtype, CPU)
    steps = InnermostSteps(flat.module)
    assert steps.of(batch(2, shape, dtype)) is not None
    return flat, steps, shape


def taken(flat, steps, content, row):
    """The loss of a batch by the step that was found on two samples; its gradient is written into the row."""
    return steps.first.gradients(content, flat.parameters, flat.views(row))


def batch(size, shape, dtype, classes=3):
    return torch.randn(size, *shape, dtype=dtype), torch.randint(0, classes, (size,))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-13), (torch.float32, 2e-5)])
@pytest.mark.parametrize("build", [lenet, padded, overlapping, pooled_first])
def test_loss_and_gradient_are_those_of_autograd(build, dtype, tolerance):
    flat, steps, shape = both(build, dtype)
    for size, left_out in [(20, 0), (1, 0), (7, 2), (32, 0), (33, 0), (100, 0), (100, 41), (20, 0)]:
        content = batch(size, shape, dtype)
        content[1][:left_out] = IGNORED
        kept, row = content[0].clone(), torch.full_like(flat.params, torch.nan)
        loss = taken(flat, steps, content, row)
        expected = flat.module.training_step(content, 0)
        gradient = flat.backward(expected)
        assert float(loss) == pytest.approx(float(expected.detach()), rel=tolerance)
        assert float((row - gradient).norm()) <= tolerance * float(gradient.norm())
        assert torch.equal(content[0], kept)


NETWORKS = {  # the shape of a sample, and layers before a dense one of this width
    "a pool that keeps a part of a window": ((1, 9, 9), lambda: [nn.MaxPool2d(2, ceil_mode=True)], 25),
    "a dilated convolution": ((1, 9, 9), lambda: [nn.Conv2d(1, 3, 3, dilation=2), nn.ReLU()], 75),
    "a strided convolution": ((1, 9, 9), lambda: [nn.Conv2d(1, 3, 3, stride=2), nn.ReLU()], 48),
    "a grouped convolution": ((2, 7, 7), lambda: [nn.Conv2d(2, 4, 3, groups=2)], 100),
    "a circular convolution": ((1, 7, 7), lambda: [nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular")], 98),
    "no bias": ((1, 7, 7), lambda: [nn.Conv2d(1, 2, 3, bias=False), nn.Flatten(), nn.Linear(50, 9, bias=False)], 9),
    "a padded pool": ((1, 8, 8), lambda: [nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, padding=1)], 32),
    "a dilated pool": ((1, 8, 8), lambda: [nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, 1, dilation=2)], 32),
    "a pool whose windows overlap": ((1, 8, 8), lambda: [nn.Conv2d(1, 2, 3), nn.MaxPool2d(3, 1)], 32),
    "two rows kept by Flatten": ((3, 5), lambda: [nn.Flatten(start_dim=1), nn.Linear(15, 6), nn.ReLU()], 6),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_other_layers_have_autograds_gradients_whether_they_are_translated_or_not(name):
    shape, layers, width = NETWORKS[name]
    flat = FlatModule(Net(*layers(), nn.Flatten(), nn.Linear(width, 4)), torch.float64, CPU)
    content = batch(12, shape, torch.float64, classes=4)
    expected = flat.backward(flat.module.training_step(content, 0))
    alone = LoopOracle(flat, innermost=InnermostSteps(flat.module))
    for oracle, count in ((alone, 1), (VectorizedOracle(flat), 3)):
        _, rows = oracle.gradients(flat.params.repeat(count, 1), [Batch(content, 12)] * count, lambda c: 0)
        for row in rows:
            torch.testing.assert_close(row, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("build", [lenet, padded, overlapping, pooled_first])
def test_the_network_has_the_same_outputs_in_evaluation(build):
    flat, steps, shape = both(build, torch.float64)
    network = flat.module.layers
    for size in (1, 20, 32, 33, 100):
        x = torch.randn(size, *shape, dtype=torch.float64)
        kept = x.clone()
        with torch.no_grad():
            expected = network(x)
            with steps.evaluating():
                ours = network(x.contiguous(memory_format=torch.channels_last))
                again = network(x)
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-13)
        assert torch.equal(ours, again)
        assert torch.equal(x, kept)


def test_outputs_with_a_graph_and_other_inputs_are_the_networks_own():
    flat, steps, shape = both(lenet, torch.float64)
    network = flat.module.layers
    seen = []
    steps.first.outputs = lambda *given: seen.append(given)
    with steps.evaluating():
        assert network(torch.randn(2, *shape, dtype=torch.float64)).requires_grad
        with torch.no_grad(), pytest.raises(RuntimeError):
            network(torch.randn(3, 7, dtype=torch.float64))
    assert not seen
    with torch.no_grad():
        network(torch.randn(2, *shape, dtype=torch.float64))
    assert not seen


def swapped(network, x):
    last, network[-1].weight = network[-1].weight, nn.Parameter(2 * network[-1].weight, requires_grad=False)
    try:
        return network(x)
    finally:
        network[-1].weight = last


def hooked(network, x):
    with network[0].register_forward_hook(lambda module, args, output: 2 * output):
        return network(x)


def cast(network, x):
    with torch.autocast("cpu", torch.bfloat16):
        return network(x)


def copied(network, x):
    found = copy.deepcopy(network)
    torch._foreach_mul_(list(found.parameters()), 2)
    return found(x)


OTHERWISE = {
    "copied": copied,
    "pickled": lambda network, x: pickle.loads(pickle.dumps(network))(x),
    "swapped": swapped,
    "functional": lambda network, x: functional_call(network, {k: 2 * p for k, p in network.named_parameters()}, x),
    "hooked": hooked,
    "cast": cast,
    "vmap": lambda network, x: torch.vmap(network)(torch.stack([x, 2 * x])),
    "jvp": lambda network, x: torch.func.jvp(network, (x,), (torch.ones_like(x),))[1],
    "empty": lambda network, x: network(x[:0]),
}


@pytest.mark.parametrize("called", OTHERWISE.values(), ids=OTHERWISE)
def test_an_evaluation_may_use_the_network_with_other_weights_and_in_other_ways(called):
    flat, steps, shape = both(lenet, torch.float32)
    x = torch.randn(5, *shape)
    with torch.no_grad():
        expected = called(flat.module.layers, x)
        with steps.evaluating():
            plain = flat.module.layers(x)
            for _ in range(3):
                assert torch.equal(called(flat.module.layers, x), expected)
                assert torch.equal(flat.module.layers(x), plain)


def test_outputs_that_differ_at_first_are_the_networks_own():
    flat, steps, shape = both(lenet, torch.float32)
    network, right, x = flat.module.layers, steps.first.outputs, torch.randn(5, *shape)
    steps.first.outputs = lambda *given: 1.01 * right(*given)
    with torch.no_grad():
        expected = network(x)
        with steps.evaluating(), pytest.warns(UserWarning, match="other outputs in batch-last layout"):
            found = [network(x) for _ in range(4)]
    assert all(torch.equal(outputs, expected) for outputs in found)


def test_outputs_that_differ_later_end_the_evaluation():
    flat, steps, shape = both(lenet, torch.float32)
    network, right, x = flat.module.layers, steps.first.outputs, torch.randn(5, *shape)
    with torch.no_grad(), steps.evaluating():
        network(x)
        steps.first.outputs = lambda *given: 1.01 * right(*given)
        with pytest.raises(Diverged, match=r"differ by 9\.9e-03 .*set runtime\.layout=contiguous"):
            network(x)


def test_a_worker_measures_the_same_in_any_layout():
    layouts = ("batch_last", "contiguous", "channels_last")
    workers = [worker(["model.name=lenet5", f"runtime.layout={layout}"]) for layout in layouts]
    chunks = [Chunk("train", np.arange(70)), Chunk("train", np.arange(33)), Chunk("test", np.arange(7))]
    ours, *others = ([list(m.results().values()) for m in w.evaluate({"x": w.initial.x}, chunks)] for w in workers)
    for theirs in others:
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)


def test_equal_inputs_share_no_gradient_among_the_entries_of_a_pool():
    """The first of equal entries gets the whole gradient, as in autograd; images have many equal entries."""
    flat, steps, shape = both(lenet, torch.float64)
    content = torch.zeros(4, *shape, dtype=torch.float64), torch.arange(4)
    row = torch.empty_like(flat.params)
    taken(flat, steps, content, row)
    torch.testing.assert_close(row, flat.backward(flat.module.training_step(content, 0)), rtol=1e-12, atol=1e-15)


def test_the_bits_do_not_depend_on_what_was_computed_before():
    contents = [batch(size, (1, 28, 28), torch.float32) for size in (20, 5, 32, 20)]
    flat, used, _ = both(lenet, torch.float32)
    for content in contents:
        fresh, row, again = both(lenet, torch.float32)[1], torch.empty_like(flat.params), torch.empty_like(flat.params)
        loss = taken(flat, used, content, row)
        assert torch.equal(loss, taken(flat, fresh, content, again))
        assert torch.equal(row, again)


def worker(overrides):
    data = {"name": "synthetic_images", "init_args": {"shape": [1, 28, 28], "num_train": 100, "num_test": 10}}
    config = {"num_clients": 4, "data": data, "runtime": {"backend": "local"}}
    return LocalBackend(assemble(load_config(config, overrides)).setup).worker
