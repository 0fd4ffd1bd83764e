"""Properties of every partition: each sample has one owner, the seed determines all draws, mistakes are named."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylfl.errors import BadValue
from raylfl.heterogeneity.partition import Samples
from raylfl.heterogeneity.partition.base import Partition
from raylfl.heterogeneity.partition.classes import Classes, ExDir, Shards
from raylfl.heterogeneity.partition.given import Natural
from raylfl.heterogeneity.partition.proportions import Dirichlet, DirichletClient, Iid, Quantity
from raylfl.heterogeneity.partition.stats import class_counts
from tests.counting import steps_in

PLANS = {
    "iid": Iid(),
    "shards": Shards(2),
    "dirichlet": Dirichlet(0.3, min_size=0),
    "dirichlet cap": Dirichlet(0.3, min_size=0, balance="cap"),
    "dirichlet equal": Dirichlet(0.3, min_size=1, balance="equal"),
    "dirichlet_client": DirichletClient(0.3),
    "exdir": ExDir(2, 0.5, min_size=0),
    "classes": Classes(2),
    "quantity": Quantity(0.3),
}


def balanced(count, classes, seed=0):
    """`count` samples whose labels 0..classes-1 are equally frequent, in random order."""
    return Samples(count, np.random.default_rng(seed).permutation(np.arange(count) % classes))


@st.composite
def tasks(draw):
    """Samples with two to four labels that 2..20 clients can share by any of PLANS."""
    clients = draw(st.integers(2, 20))
    names = draw(st.lists(st.integers(-5, 1000), min_size=2, max_size=4, unique=True))
    per_class = st.integers(2 * clients, 5 * clients)  # as many as its owners at least
    labels = np.repeat(names, [draw(per_class) for _ in names])
    seed = draw(st.integers(0, 2**32))
    return Samples(len(labels), np.random.default_rng(seed).permutation(labels)), clients, seed


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
@given(task=tasks())
def test_every_sample_has_one_owner_unless_it_is_counted_as_dropped(plan, task):
    samples, clients, seed = task
    split = plan.split(samples, clients, seed)
    owned = np.concatenate(split.clients)
    assert len(split.clients) == clients
    assert np.array_equal(split.sizes, [len(indices) for indices in split.clients])
    assert len(np.unique(owned)) == len(owned) == samples.count - split.dropped
    assert owned.min() >= 0
    assert owned.max() < samples.count
    assert all(indices.dtype == np.int64 and np.all(np.diff(indices) > 0) for indices in split.clients)
    assert split.dropped == (samples.count % (2 * clients) if isinstance(plan, Shards) else 0)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_a_split_depends_on_the_seed_and_the_labels_up_to_their_names_and_on_nothing_else(plan):
    samples = balanced(400, 4)
    np.random.seed(1)
    before = np.random.get_state()[1]
    first, again, other = (plan.split(samples, 10, seed) for seed in (3, 3, 4))
    assert all(map(np.array_equal, first.clients, again.clients))
    assert not all(map(np.array_equal, first.clients, other.clients))
    assert np.array_equal(before, np.random.get_state()[1])
    renamed = Samples(400, np.array([-7, 0, 3, 90])[samples.labels])
    assert all(map(np.array_equal, first.clients, plan.split(renamed, 10, 3).clients))


@pytest.mark.parametrize("plan", [Iid(), Quantity(), Natural()])
def test_partitions_that_ignore_labels_do_without(plan):
    owners = [np.array([4, 1]), np.array([0, 2, 3])]
    assert sum(plan.split(Samples(5, owners=owners), 2, 0).sizes) == 5


@pytest.mark.parametrize("plan", [Shards(), Dirichlet(), DirichletClient(), ExDir(), Classes()])
def test_partitions_by_label_refuse_unlabelled_data(plan):
    with pytest.raises(BadValue, match=r"^name=.*no labels"):
        plan.split(Samples(500), 10, 0)


@given(task=tasks(), alpha=st.floats(1e-6, 100), balance=st.sampled_from(["draw", "move"]))
def test_sizes_differ_by_at_most_one_and_by_quantity_every_client_has_data(task, alpha, balance):
    samples, clients, seed = task
    for plan in (Iid(), DirichletClient(max(alpha, 0.01), balance)):
        assert np.ptp(plan.split(samples, clients, seed).sizes) <= 1
    assert Quantity(alpha).split(samples, clients, seed).sizes.min() >= 1


def test_iid_label_counts_are_hypergeometric():
    samples = balanced(20_000, 10)
    counts = class_counts(Iid().split(samples, 200, 0), samples)
    variance = 100 * 0.1 * 0.9 * (20_000 - 100) / (20_000 - 1)
    assert counts.mean() == 10
    assert counts.var() == pytest.approx(variance, rel=0.15)  # 2000 counts: 5 sigma is 16 %


@given(task=tasks(), shards=st.integers(1, 3))
def test_shards_are_equal_blocks_of_sorted_labels(task, shards):
    samples, clients, seed = task
    split = Shards(shards).split(samples, clients, seed)
    block = samples.count // (shards * clients)
    assert set(split.sizes) == {shards * block}
    # a client of s blocks sees a label boundary only inside one of them: all borders together are K - 1
    seen = (class_counts(split, samples) > 0).sum(axis=1)
    assert np.maximum(seen - shards, 0).sum() <= samples.num_classes - 1


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_quantity_sizes_have_the_variance_of_a_dirichlet(alpha):
    n, clients = 10_000, 20
    sizes = np.array([Quantity(alpha).split(Samples(n), clients, seed).sizes for seed in range(200)])
    expected = (n - clients) ** 2 * (1 / clients) * (1 - 1 / clients) / (clients * alpha + 1)
    squares = ((sizes - n / clients) ** 2).mean(axis=1)  # one number a split, whose clients are dependent
    error = squares.std() / np.sqrt(len(squares))
    assert abs(squares.mean() - expected) < 4 * error


@given(task=tasks(), c=st.integers(1, 4))
def test_classes_gives_c_labels_per_client_and_shares_each_evenly(task, c):
    samples, clients, seed = task
    c = min(max(c, -(-samples.num_classes // clients)), samples.num_classes)
    counts = class_counts(Classes(c).split(samples, clients, seed), samples)
    assert np.all((counts > 0).sum(axis=1) == c)
    for column in counts.T:
        assert np.ptp(column[column > 0]) <= 1
    if c == 1:
        assert np.ptp((counts > 0).sum(axis=0)) <= 1


def test_the_other_classes_of_a_client_are_uniform():
    samples = balanced(4000, 4)
    together = np.zeros((4, 4))
    for seed in range(100):
        owned = class_counts(Classes(2).split(samples, 8, seed), samples) > 0
        together += owned.T.astype(float) @ owned
    pairs = together[~np.eye(4, dtype=bool)]  # 800 clients over 6 pairs of classes
    assert pairs.mean() == pytest.approx(800 / 6)
    assert np.abs(pairs - 800 / 6).max() < 4.5 * np.sqrt(800 * (1 / 6) * (5 / 6))


def test_natural_keeps_the_datas_clients_and_counts_the_remaining_samples():
    owners = [np.array([5, 1]), np.array([3])]
    split = Natural().split(Samples(7, owners=owners), 2, 0)
    assert [c.tolist() for c in split.clients] == [[1, 5], [3]]
    assert split.dropped == 4
    assert Natural().fixed_clients(Samples(7, owners=owners)) == 2
    assert Iid().fixed_clients(Samples(7)) is None


OVERLAP = [np.array([0, 1]), np.array([1])]
REFUSED = [
    (Iid(), 11, "num_clients", "1..10"),
    (Iid(), 0, "num_clients", "1..10"),
    (Shards(3), 5, "shards_per_client", "at most 2"),
    (Dirichlet(0.1, min_size=3), 5, "min_size", "at most 2"),
    (Dirichlet(0.1, min_size=3, balance="equal"), 5, "min_size", "at most 2"),
    (ExDir(3, 1.0, min_size=0), 5, "classes", "1..2"),
    (ExDir(1, 1.0, min_size=0), 1, "classes", "2..2"),
    (ExDir(1, 1.0, min_size=6), 2, "min_size", "at most 5"),
    (Classes(3), 5, "classes", "1..2"),
    (Classes(1), 1, "classes", "num_clients=1"),
    (Natural(), 3, "num_clients", "2"),
    (Natural(), 2, "name", "1 is listed by clients 0 and 1"),
]


@pytest.mark.parametrize(("plan", "clients", "key", "words"), REFUSED)
def test_what_cannot_be_done_names_the_number_to_change(plan, clients, key, words):
    samples = Samples(10, np.arange(10) % 2, OVERLAP)
    with pytest.raises(BadValue) as refused:
        plan.split(samples, clients, 0)
    assert refused.value.key == key
    assert words in str(refused.value)


def test_a_min_size_is_met_or_names_all_three_numbers_and_so_are_the_owners_of_a_class():
    with pytest.raises(BadValue, match=r"^min_size=40, but must be at most \d+, .*alpha=0.05.*num_clients=20"):
        Dirichlet(0.05, min_size=40).split(balanced(1000, 10), 20, 0)
    split = Dirichlet(1.0, min_size=5).split(Samples(10, np.arange(10) % 2), 2, 0)
    assert [len(client) for client in split.clients] == [5, 5]
    labels = np.array([0] * 3 + [1] * 97)  # five clients share three samples
    with pytest.raises(BadValue, match=r"^num_clients=10"):
        Classes(1).split(Samples(100, labels), 10, 0)


@pytest.mark.parametrize(
    ("owners", "words"),
    [
        (None, "defines no clients"),
        ([[0, 1], []], "client 1 has none"),
        ([[0], [9]], "client 1 has 9"),
        ([[-1], [2]], "client 0 has -1"),
        ([[0, 0], [2]], "0 is listed by clients 0 and 0"),
    ],
)
def test_natural_refuses_owners_that_make_no_partition(owners, words):
    with pytest.raises(BadValue, match=words):
        Natural().split(Samples(5, owners=owners), 2, 0)


@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_work_grows_with_the_clients_and_not_with_their_samples(plan):
    """Lines of Python: some for each client and class, none for a sample."""
    few, many = balanced(5_000, 10), balanced(50_000, 10)
    plan.split(few, 100, 0)  # recorded from here on
    counts = [steps_in(lambda s=s: plan.split(s, 100, 0)) for s in (few, many)]
    assert counts[1] < counts[0] + 500 < 10_000
    assert sum(plan.split(many, 100, 0).sizes) == 50_000


def test_ten_thousand_equal_clients_are_cut_with_a_few_steps_each():
    assert steps_in(lambda: Iid().split(Samples(100_000), 10_000, 0)) < 5 * 10_000
    assert set(Iid().split(Samples(100_000), 10_000, 0).sizes) == {10}


@pytest.mark.parametrize(
    ("owner", "words"),
    [
        (np.zeros(11, dtype=np.int64), "returned int64 (11,)"),
        (np.zeros(12), "returned float64 (12,)"),
        (np.arange(12) // 4, "returned owners 0..2"),
        (np.arange(12) // 6 - 2, "returned owners -2..-1"),
    ],
)
def test_owners_that_make_no_split_are_refused(owner, words):
    class Own(Partition):
        def assign(self, samples, num_clients, rng):
            return owner

    with pytest.raises(BadValue, match=r"the owner of each of the 12 samples, an integer in 0\.\.1, or -1") as told:
        Own().split(Samples(12), 2, seed=0)
    assert f"Own.assign {words}" in str(told.value.at("partition"))
