"""The recorded step against autograd: equal bits, buffers and random draws included, or a refusal with its reason."""

import pytest
import torch

import raylfl
from raylfl.core.batchnorm import allow_single_samples
from raylfl.core.flat import FlatModule, in_channels_last
from raylfl.core.oracle import LoopOracle, seed_everything
from raylfl.core.reference import loss_of
from raylfl.models import MODELS
from raylfl.replay.recorded.program import Program
from raylfl.replay.recorded.steps import RecordedSteps
from raylfl.replay.step_log import StepLog
from tests.core import user_modules as users
from tests.core.user_modules import CLASSES, HIDDEN
from tests.runtime.tiny import TINY

CPU = torch.device("cpu")

KINDS = [  # `random_programs` has more operations
    users.Residual,
    users.Mixed,
    users.Images,
    users.LSTM,
    users.Encoder,
    users.Language,
    users.Frozen,
    users.InPlace,
    users.Hooked,
    users.OneHot,
    users.Popped,
    users.Centred,
    users.Contrastive,
    users.Tuned,
    users.Spectral,
]


def shipped(name, shape, **options):
    cls = MODELS.get(name).cls

    def make():
        module = cls(in_shape=shape, num_classes=CLASSES, **options)
        module.batch = lambda size: (torch.randn(size, *shape), torch.randint(0, CLASSES, (size,)))
        return module

    return pytest.param(make, id="-".join([name, *map(str, options.values())]))


SMALL, COLOUR = (1, 28, 28), (3, 32, 32)
SHIPPED = [
    shipped("mlp", SMALL, dropout=0.5),
    shipped("lenet5", SMALL),
    shipped("cnn_fedacs_cinic", COLOUR),
    shipped("vgg9", COLOUR, width=4),
    *(shipped("resnet18", COLOUR, width=4, norm=norm) for norm in ("none", "group", "batch")),
]


def steps_of(module, dtype=torch.float32, channels_last=False):
    flat = FlatModule(module, dtype, CPU, channels_last)
    return flat, LoopOracle(flat).steps


def moved(content, dtype, channels_last):
    if isinstance(content, dict):
        return {name: moved(part, dtype, channels_last) for name, part in content.items()}
    if isinstance(content, tuple):
        return tuple(moved(part, dtype, channels_last) for part in content)
    if not isinstance(content, torch.Tensor):
        return content
    content = content.to(dtype, copy=True) if content.is_floating_point() else content
    return in_channels_last(content) if channels_last and content.ndim == 4 else content


def plain_gradient(loss, flat):
    """The gradient [d] that `backward` leaves in the parameters, as in any loop."""
    flat.module.zero_grad()
    loss.backward()
    flat.take_back_buffers()
    return torch.cat([torch.zeros(p.numel()).to(p) if p.grad is None else p.grad.reshape(-1) for p in flat.parameters])


def check_bits(make, steps=9, dtype=torch.float32, channels_last=False, training=True, sizes=(4, 5)):
    """Steps of two copies of a module along one trajectory; the number of replayed steps."""
    torch.set_num_threads(1)  # a run before may have left others
    torch.manual_seed(0)
    module = make()
    torch.manual_seed(0)
    twin = make()
    (flat, recorded), (other, _) = (steps_of(m, dtype, channels_last) for m in (module, twin))
    for m in (module, twin):
        m.train(training)
    replayed = 0
    for k in range(steps):
        torch.manual_seed(100 + k)
        batch = module.batch(sizes[k % len(sizes)])
        content, again = (moved(batch, dtype, channels_last) for _ in range(2))
        flat.load(flat.params)
        other.load(other.params)
        seed_everything(k)
        expected = twin.training_step(again, 0)
        expected = loss_of(expected, twin)
        theirs = plain_gradient(expected, other)
        drawn = torch.rand(3)
        seed_everything(k)
        program = recorded.program(content)
        if program is None:
            loss, row = recorded.take(content)
        else:
            row = torch.full_like(flat.params, torch.nan)
            leaves = list(content.values()) if isinstance(content, dict) else content
            loss, *_ = program(leaves, row)
            replayed += 1
        assert torch.equal(torch.rand(3), drawn)
        assert torch.equal(loss, expected.detach())
        assert torch.equal(row, theirs)
        assert torch.equal(flat.read_buffers(), other.read_buffers())
        assert theirs.abs().sum() > 0
        flat.params.sub_(row, alpha=0.05)
        other.params.sub_(theirs, alpha=0.05)
    return recorded, replayed


def taken(recorded, module, count, t=lambda k: 0):
    """Steps of a module, each of another client; whether each was replayed."""
    found = []
    for k in range(count):
        content = module.batch(4)
        program = recorded.program(content, t(k))
        recorded.replay(program, content) if program else recorded.take(content, t(k))
        found.append(program is not None)
    return found


IN_EVALUATION = [users.Residual, users.Images, users.LSTM, users.Encoder]  # with dropout or batch normalisation


@pytest.mark.parametrize(
    ("kind", "training"),
    [*((kind, True) for kind in KINDS), *((kind, False) for kind in IN_EVALUATION)],
    ids=lambda value: getattr(value, "__name__", "train" if value is True else "eval"),
)
def test_a_users_module_has_the_bits_of_autograd(kind, training):
    recorded, replayed = check_bits(kind, steps=16, training=training)
    assert recorded.refusal is None
    assert replayed >= 5  # of each kind of batch the fifth, seventh and eighth; others are checked
    programs = [kind.program for kind in recorded.kinds.values() if kind.program is not None]
    assert all(program.arena is recorded.arena for program in programs)  # without fixed memory the bits are equal, too


@pytest.mark.parametrize("make", SHIPPED)
def test_shipped_models_have_the_bits_of_autograd(make):
    recorded, replayed = check_bits(make, steps=5, sizes=(4,))
    assert recorded.refusal is None
    assert replayed == 1


@pytest.mark.parametrize("make", SHIPPED[1:3] + SHIPPED[-1:])
def test_so_they_have_in_channels_last_order_and_double_precision(make):
    for dtype in (torch.float32, torch.float64):
        recorded, replayed = check_bits(make, steps=5, dtype=dtype, channels_last=True, sizes=(4,))
        assert recorded.refusal is None
        assert replayed == 1


@torch.library.custom_op("raylfl_tests::noise", mutates_args=())
def noise(x: torch.Tensor) -> torch.Tensor:
    return x + torch.rand_like(x)


noise.register_autograd(lambda ctx, g: g)


class Noisy(users.Dense):
    def prepare(self):
        self.drop = torch.nn.Identity()

    def forward(self, x):
        return noise(super().forward(x))


def test_a_users_operator_counts_as_one_that_draws_random_numbers():
    """Otherwise the generator would not be seeded before a replay."""
    module = Noisy()
    _, recorded = steps_of(module)
    for _ in range(2):
        recorded.take(module.batch(4))
    (kind,) = recorded.kinds.values()
    assert kind.program.draws


def logging_steps():
    """A module that logs tensors, a number and values used only by its logs; its log; its recorded steps."""
    module, log = users.Logs(), StepLog()
    HIDDEN.notes["seen"].clear()

    def sink(name, value, **options):
        log.note(name, value, options)
        HIDDEN.notes["seen"].append((name, torch.as_tensor(value).detach(), options))

    log.sink, module.log = sink, sink
    flat = FlatModule(module, torch.float32, CPU)

    def gradient(loss):
        return torch.autograd.grad(loss, flat.parameters)

    return (
        module,
        HIDDEN.notes["seen"],
        RecordedSteps(module, flat.parameters, lambda c, t: module.training_step(c, t), gradient, log),
    )


def test_what_a_step_logs_is_logged_by_its_replay():
    module, seen, recorded = logging_steps()
    for k in range(8):
        torch.manual_seed(k)
        content = module.batch(6)
        del seen[:]
        program = recorded.program(content)
        torch.manual_seed(k)
        recorded.replay(program, content) if program else recorded.take(content)
        assert recorded.refusal is None
        assert (program is not None) == (k in (4, 6, 7))
        ours = seen[:3]  # the step is logged first; its repetitions are dropped with the values of the step
        del seen[:]
        torch.manual_seed(k)
        module.training_step(content, 0)
        assert [(name, float(value), options) for name, value, options in ours] == [
            (name, float(value), options) for name, value, options in seen
        ]
        assert [name for name, *_ in ours] == ["train/loss", "accuracy", "size"]
        assert ours[1][2] == {"on_epoch": True}


def test_outside_of_local_work_nothing_is_logged():
    module, seen, recorded = logging_steps()
    for _ in range(5):
        recorded.take(module.batch(6))
    recorded.log.sink = None
    module.log = lambda *args, **options: None
    del seen[:]
    for _ in range(6):
        content = module.batch(6)
        program = recorded.program(content)
        recorded.replay(program, content) if program else recorded.take(content)
    assert not seen


def test_each_mode_of_the_module_has_its_own_recording():
    """A measurement of the objective takes gradients in evaluation mode between two rounds."""
    module = users.Dense()
    _, recorded = steps_of(module)
    for training in (True, False) * 5:
        module.train(training)
        content = module.batch(4)
        program = recorded.program(content)
        if program is None:
            recorded.take(content)
        else:
            assert program.draws == training
    assert recorded.refusal is None
    assert [kind.program is not None for kind in recorded.kinds.values()] == [True, True]


def test_a_step_that_sets_modes_is_recorded_for_each_mode_that_it_finds_and_its_replays_set_them():
    """A client starts in training mode; the first step of its local work sets another mode."""
    module = users.Tuned()
    _, recorded = steps_of(module)
    found = []
    for _ in range(8):
        module.train()
        for _ in range(2):
            content = module.batch(4)
            program = recorded.program(content)
            recorded.take(content) if program is None else recorded.replay(program, content)
            found.append(program is not None)
            assert not any(part.training for part in module.backbone.modules())
    assert recorded.refusal is None
    assert found == [False] * 8 + [True] * 2 + [False] * 2 + [True] * 4  # the sixth step of a kind is compared


def test_a_tensor_in_an_attribute_may_be_written_to_by_other_code_and_share_memory_with_the_batch():
    module = users.AnchoredInBatch()
    _, recorded = steps_of(module)
    assert taken(recorded, module, 5) == [False] * 4 + [True]
    module.anchors[0].add_(1)
    recorded.doubt()
    assert recorded.program(module.batch(4)) is None
    recorded.take(content := module.batch(4))
    assert recorded.refusal is None
    (kind,) = recorded.kinds.values()
    program = kind.program
    expected = module.training_step(content, 0)
    assert torch.equal(recorded.replay(program, content)[0], expected.detach())


def test_the_oldest_kind_is_dropped(monkeypatch):
    monkeypatch.setattr("raylfl.replay.recorded.steps.MOST", 2)
    module = users.Dense()
    _, recorded = steps_of(module)
    kinds = [recorded._kind(module.batch(size)) for size in (4, 5, 4, 6, 4, 5)]
    assert kinds[0] is kinds[2]
    assert kinds[0] is not kinds[4]
    assert kinds[1] is not kinds[5]
    assert len(recorded.kinds) == 2


def test_values_are_freed_after_their_last_use_and_numbers_known_beforehand_are_not_computed():
    module = users.Residual()
    _, recorded = steps_of(module)
    for _ in range(4):
        recorded.take(module.batch(4))
    (program,) = (kind.program for kind in recorded.kinds.values())
    operators = [call.op._schema.name for call in program.calls]
    assert "aten::detach" not in operators
    assert "aten::ones_like" not in operators
    assert operators.count("aten::t") == 3  # of the last gradient; views of weights and of fixed memory are made once
    assert Program(program.recording, program.sizes).listing.count("del ") > 20


def test_batches_of_one_sample_are_replayed_through_batch_normalisation():
    def make():
        module = users.Residual()
        allow_single_samples(module)
        return module

    recorded, replayed = check_bits(make, steps=12, sizes=(4, 1))
    assert recorded.refusal is None
    assert replayed == 2


def test_under_the_runs_autocast_replays_have_autograds_bits(runs):
    config = {**TINY, "local": {"steps": 4, "batch_size": 4, "lr": 0.05}, "rounds": 2}
    runs = [*runs, "runtime.vectorize=never"]
    ours, theirs, whole = (
        raylfl.run(config, [*runs, f"runtime.step={step}", f"runtime.precision={precision}"])
        for step, precision in (("recorded", "bf16-mixed"), ("autograd", "bf16-mixed"), ("autograd", "32-true"))
    )
    assert torch.equal(ours.params, theirs.params)
    assert not torch.equal(ours.params, whole.params)  # otherwise there was no autocast
    assert "recorded" in {row["step"] for row in ours.summary["local_steps"]}


@pytest.mark.parametrize("clients", [(), (4,)])
def test_a_parameter_without_a_gradient_has_zeros_of_the_others_dtype_and_device(clients):
    layer = torch.nn.Linear(2, 3, device="meta", dtype=torch.bfloat16)
    steps = RecordedSteps(layer, list(layer.parameters()), None, None)
    row = steps._row([None, torch.ones(*clients, 3, device="meta", dtype=torch.bfloat16)], clients)
    assert (row.shape, row.dtype, row.device.type) == ((*clients, 9), torch.bfloat16, "meta")
