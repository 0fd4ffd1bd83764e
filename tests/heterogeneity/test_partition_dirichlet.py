"""Dirichlet and ExDir partitions against the moments of their distributions and step-by-step oracles."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from raylfl.errors import BadValue
from raylfl.heterogeneity.partition import Samples
from raylfl.heterogeneity.partition.classes import ExDir, allocate_enough
from raylfl.heterogeneity.partition.deal import deal, dirichlet_counts, level
from raylfl.heterogeneity.partition.proportions import Dirichlet, DirichletClient, divided, draw_labels, log_dirichlet
from raylfl.heterogeneity.partition.stats import class_counts
from tests.heterogeneity.test_partition import balanced, tasks

RNG = np.random.default_rng


@pytest.mark.parametrize("alpha", [0.1, 1.0, 10.0])
def test_dirichlet_has_the_second_moments_of_its_law(alpha):
    """E[sum_i p_i^2] = (alpha + 1) / (N alpha + 1), and p_i, p_j correlate by -1 / (N - 1)."""
    clients, classes, per_class = 20, 400, 1000
    samples = balanced(classes * per_class, classes)  # 400 independent draws in one split
    p = class_counts(Dirichlet(alpha, min_size=0).split(samples, clients, 0), samples) / per_class
    squares = (p**2).sum(axis=0)
    error = squares.std() / np.sqrt(classes) + clients / per_class**2
    assert abs(squares.mean() - (alpha + 1) / (clients * alpha + 1)) < 4 * error
    assert p.mean(axis=1) == pytest.approx(np.full(clients, 1 / clients), abs=5 * p.std() / np.sqrt(classes))
    correlation = np.corrcoef(p)[np.triu_indices(clients, 1)]
    assert correlation.mean() == pytest.approx(-1 / (clients - 1), abs=0.02)


@given(task=tasks(), alpha=st.floats(0.01, 10))
def test_cap_gives_no_further_class_to_a_client_with_n_over_n_samples(task, alpha):
    samples, clients, seed = task
    counts = class_counts(Dirichlet(alpha, 0, "cap").split(samples, clients, seed), samples)
    before = np.cumsum(counts, axis=1) - counts
    assert np.all(counts[before >= samples.count / clients] == 0)


@given(task=tasks(), alpha=st.floats(0.01, 10))
def test_equal_moves_samples_from_rich_to_poor_only(task, alpha):
    samples, clients, seed = task
    drawn = class_counts(Dirichlet(alpha, 0).split(samples, clients, seed), samples)
    levelled = class_counts(Dirichlet(alpha, 0, "equal").split(samples, clients, seed), samples)
    assert np.ptp(levelled.sum(axis=1)) <= 1
    gained = levelled.sum(axis=1) > drawn.sum(axis=1)
    assert np.all(levelled[gained] >= drawn[gained])
    assert np.all(levelled[~gained] <= drawn[~gained])


def test_any_sample_of_a_class_may_go_to_any_of_its_clients():
    counts = np.array([[30, 0], [10, 60]])
    codes = np.repeat([0, 1], [40, 60])
    first = sum((deal(counts, codes, RNG(seed)) == 0).astype(int) for seed in range(400))
    assert np.all(first[40:] == 0)
    assert np.abs(first[:40] - 300).max() < 4.5 * np.sqrt(400 * 0.75 * 0.25)


@pytest.mark.parametrize("balance", ["none", "cap"])
def test_min_size_is_kept_by_redrawing(balance):
    samples = balanced(50_000, 10)
    unguarded = [Dirichlet(0.1, 0, balance).split(samples, 100, seed).sizes.min() for seed in range(20)]
    guarded = [Dirichlet(0.1, 10, balance).split(samples, 100, seed).sizes.min() for seed in range(20)]
    assert min(unguarded) < 10 <= min(guarded)


@pytest.mark.parametrize("alpha", [1e-300, 1e-6, 1e6])
def test_extreme_alphas_still_partition(alpha):
    samples = balanced(1000, 10)
    for plan in (Dirichlet(alpha, 0), Dirichlet(alpha, 0, "cap"), DirichletClient(alpha)):
        assert plan.split(samples, 20, 0).sizes.sum() == 1000


@pytest.mark.parametrize("alpha", [0.05, 1.0, 20.0])
def test_log_dirichlet_has_the_second_moments_of_its_law(alpha):
    """E[q_c] = p_c and E[q_c^2] = a_c (a_c + 1) / (alpha (alpha + 1)), where a = alpha p."""
    prior = np.array([0.5, 0.3, 0.15, 0.05])
    log_q = log_dirichlet(alpha * prior, 40_000, RNG(0))
    q = np.exp(log_q - log_q.max(axis=1, keepdims=True))
    q /= q.sum(axis=1, keepdims=True)
    a = alpha * prior
    for measured, exact in ((q, prior), (q**2, a * (a + 1) / (alpha * (alpha + 1)))):
        assert np.all(np.abs(measured.mean(axis=0) - exact) < 5 * measured.std(axis=0) / np.sqrt(len(q)))
    assert np.all(np.isfinite(log_q))


def one_by_one(size, mix, left):
    """The exact law of the class counts when samples are drawn singly and a used-up class leaves the mix."""
    law = {(0,) * len(mix): 1.0}
    for _ in range(size):
        following = {}
        for counts, probability in law.items():
            rest = np.where(np.array(counts) < left, mix, 0.0)
            for c in np.flatnonzero(rest):
                after = (*counts[:c], counts[c] + 1, *counts[c + 1 :])
                following[after] = following.get(after, 0.0) + probability * rest[c] / rest.sum()
        law = following
    return law


def test_labels_are_drawn_as_if_one_by_one():
    mix, left, size, draws = np.array([0.6, 0.3, 0.1]), np.array([2, 2, 5]), 4, 8000
    law, rng = one_by_one(size, mix, left), RNG(0)
    seen = [tuple(draw_labels(size, np.log(mix) + 3.0, left, rng).tolist()) for _ in range(draws)]
    assert set(seen) <= set(law)
    observed = [seen.count(counts) for counts in law]
    assert stats.chisquare(observed, [draws * p for p in law.values()]).pvalue > 0.001


def test_improbable_labels_follow_their_ratios_once_the_others_are_gone():
    """Proportions 1 : e^-2000 : e^-2001 underflow, yet the last two share what is left as e : 1."""
    log_mix, left = np.array([0.0, -2000.0, -2001.0]), np.array([10, 10_000, 10_000])
    drawn = draw_labels(8010, log_mix, left, RNG(0))
    assert drawn[0] == 10
    assert drawn[1] / 8000 == pytest.approx(np.e / (1 + np.e), abs=0.025)  # 5 sigma


def test_divided_classes_go_to_clients_in_proportion_to_their_shares():
    log_mix = np.log([[0.9, 0.1], [0.5, 0.5], [0.1, 0.9]]) + np.array([[0.0], [-2000.0], [700.0]])
    counts = divided(log_mix, np.array([1500, 3000]))
    np.testing.assert_allclose(counts, [[900, 200], [500, 1000], [100, 1800]], rtol=0, atol=1)
    np.testing.assert_array_equal(counts.sum(axis=0), [1500, 3000])


def moved(alpha: float, clients: int, labels: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The owners under `balance: move`, from its description: without logarithms, sample by sample."""
    mix = rng.dirichlet(np.full(10, alpha / 10), clients)
    own: list[list[int]] = [[] for _ in range(clients)]
    for c in range(10):
        ends = np.floor(np.cumsum(mix[:, c]) / mix[:, c].sum() * (labels == c).sum())
        for place, sample in enumerate(np.flatnonzero(labels == c)):
            own[min(int((ends <= place).sum()), clients - 1)].append(int(sample))
    size, pool = len(labels) // clients, []
    for mine in own:
        rng.shuffle(mine)
        pool += mine[size:]
        del mine[size:]
    rng.shuffle(pool)
    owner = np.empty(len(labels), dtype=np.int64)
    for i, mine in enumerate(own):
        mine += [pool.pop() for _ in range(size - len(mine))]
        owner[mine] = i
    return owner


def test_moves_of_dirichlet_client_have_the_law_of_a_sample_by_sample_oracle():
    """The share of a client's largest class, and how many classes have a tenth of its samples, over 60 seeds."""
    labels = RNG(0).permutation(np.repeat(np.arange(10), 320))
    samples = Samples(3200, labels)

    def numbers(counts):
        return (counts / 100).max(axis=1).mean(), (counts >= 10).sum(axis=1).mean()

    def counted(owner):
        return np.bincount(10 * owner + labels, minlength=320).reshape(32, 10)

    def split(seed, balance):
        return class_counts(DirichletClient(0.3, balance).split(samples, 32, seed), samples)

    ours = np.array([numbers(split(seed, "move")) for seed in range(60)])
    theirs = np.array([numbers(counted(moved(0.3, 32, labels, RNG(seed)))) for seed in range(60)])
    error = np.hypot(ours.std(axis=0), theirs.std(axis=0)) / np.sqrt(60)
    assert np.all(np.abs(ours.mean(axis=0) - theirs.mean(axis=0)) < 4 * error)
    drawn = np.array([numbers(split(seed, "draw")) for seed in range(20)])
    assert np.all(np.abs(ours.mean(axis=0) - drawn.mean(axis=0)) > 10 * error)  # the other rule is told apart


def test_surplus_samples_go_to_clients_at_random():
    """Clients 0 and 1 each give 20 of 40 samples; what client 2 gets from client 0 is hypergeometric: mean 10."""
    owner = np.repeat([0, 1], 40)
    levelled = [level(owner, 4, RNG(seed)) for seed in range(300)]
    assert all(np.bincount(owners).tolist() == [20] * 4 for owners in levelled)
    from_0 = np.array([(owners[:40] == 2).sum() for owners in levelled])
    law = stats.hypergeom(40, 20, 20)
    assert abs(from_0.mean() - law.mean()) < 5 * law.std() / np.sqrt(300)
    assert from_0.std() == pytest.approx(law.std(), rel=0.25)  # 5 standard errors


def literally(labels, clients, classes, alpha, rng):
    """Counts [N, K] of one ExDir partition, drawn over all clients and then masked; no client is redrawn."""
    names = np.unique(labels)
    fewest = max(classes * clients // len(names) // 5, 1)
    while True:
        owned = np.zeros((clients, len(names)), dtype=bool)
        for i in range(clients):
            owned[i, rng.choice(len(names), classes, replace=False)] = True
        if owned.sum(axis=0).min() >= fewest:
            break
    counts = np.zeros((clients, len(names)), dtype=int)
    for c, name in enumerate(names):
        p = rng.dirichlet(np.full(clients, alpha))
        p *= owned[:, c] & (counts.sum(axis=1) < len(labels) / clients)
        total = np.sum(labels == name)
        ends = np.floor(np.cumsum(p / p.sum()) * total + 1e-9).astype(int)
        counts[:, c] = np.diff(ends, prepend=0)
        counts[np.flatnonzero(owned[:, c])[-1], c] += total - ends[-1]
    return counts


@pytest.mark.parametrize(("clients", "classes"), [(500, 1), (500, 2), (1000, 1), (1000, 2)])
def test_the_papers_settings_lose_no_sample_and_give_every_client_ten(clients, classes):
    samples = balanced(100 * clients, 10)  # CIFAR-10 over 500; 100,000 over 1000
    for seed in range(5):
        split = ExDir(classes, 10.0).split(samples, clients, seed)
        counts = class_counts(split, samples)
        assert split.dropped == 0
        assert np.array_equal(counts.sum(axis=0), samples.class_sizes)
        assert counts.sum(axis=1).min() >= 10
        assert (counts > 0).sum(axis=1).max() <= classes
        assert (counts > 0).sum(axis=0).min() >= classes * clients // 50


def test_ten_clients_with_one_of_ten_classes_have_one_possible_result():
    """SFL, Fig. 7, first row: each client owns one whole class, whatever alpha is."""
    samples = balanced(60_000, 10)
    for alpha in (1.0, 10.0, 100.0):
        counts = class_counts(ExDir(1, alpha).split(samples, 10, 0), samples)
        assert np.array_equal(np.sort(counts, axis=1)[:, -1], [6000] * 10)
        assert np.array_equal((counts > 0).sum(axis=0), [1] * 10)


@pytest.mark.parametrize("classes", [1, 2, 5])
def test_sizes_follow_the_definition_read_literally(classes):
    samples = balanced(20_000, 10)
    ours = np.concatenate([ExDir(classes, 10.0, min_size=0).split(samples, 200, s).sizes for s in range(8)])
    rng = np.random.default_rng(1)
    oracle = [literally(samples.labels, 200, classes, 10.0, rng).sum(axis=1) for _ in range(8)]
    assert stats.ks_2samp(ours, np.concatenate(oracle)).pvalue > 0.001


@given(task=tasks(), classes=st.integers(1, 4), alpha=st.floats(0.05, 50))
def test_a_client_has_at_most_c_classes_and_a_full_one_takes_no_more(task, classes, alpha):
    samples, clients, seed = task
    classes = min(max(classes, -(-samples.num_classes // clients)), samples.num_classes)
    counts = class_counts(ExDir(classes, alpha, min_size=0).split(samples, clients, seed), samples)
    assert np.array_equal(counts.sum(axis=0), samples.class_sizes)
    assert (counts > 0).sum(axis=1).max() <= classes
    full = np.cumsum(counts, axis=1) - counts >= samples.count / clients
    taken_by_full = (full & (counts > 0)).any(axis=0)
    taken_by_others = (~full & (counts > 0)).any(axis=0)
    assert not np.any(taken_by_full & taken_by_others)  # only where all owners were full


@given(clients=st.integers(1, 60), labels=st.integers(1, 30), seed=st.integers(0, 2**32), data=st.data())
def test_every_client_gets_c_classes_and_every_class_enough_clients(clients, labels, seed, data):
    classes = data.draw(st.integers(-(-labels // clients), labels))
    owned = allocate_enough(classes, clients, labels, np.random.default_rng(seed))
    assert np.all(owned.sum(axis=1) == classes)
    assert owned.sum(axis=0).min() >= max(classes * clients // labels // 5, 1)


@pytest.mark.parametrize("draws", [1, 300])
def test_filling_up_favours_no_result(draws, monkeypatch):
    """4 clients of 3 classes, C = 1: 36 results, equally likely, whether redrawn or filled up."""
    monkeypatch.setattr("raylfl.heterogeneity.partition.classes.REALLOCATIONS", draws)
    rng = np.random.default_rng(0)
    found = [tuple(allocate_enough(1, 4, 3, rng).argmax(axis=1)) for _ in range(4000)]
    observed = np.unique(found, axis=0, return_counts=True)[1]
    assert len(observed) == 36
    assert stats.chisquare(observed).pvalue > 0.001


def test_a_class_whose_owners_are_all_full_is_shared_by_all_of_them():
    owned = np.array([[True, False, True], [False, True, True], [False, True, False]])
    counts = dirichlet_counts(np.array([50, 100, 60]), 1e4, owned, 40, np.random.default_rng(0))
    assert counts[:, 0].tolist() == [50, 0, 0]
    assert counts[:, 2] == pytest.approx([30, 30, 0], abs=3)


def test_an_unreachable_min_size_is_refused_with_the_remedy():
    samples = balanced(50_000, 10)
    with pytest.raises(BadValue, match=r"^min_size=60, but must be at most \d+, .*alpha=1, .*num_clients=500"):
        ExDir(1, 1.0, min_size=60).split(samples, 500, 0)
