"""Figures of the papers' theory: bounds and predictions with small quadratic runs in plain NumPy."""

from abc import abstractmethod
from functools import partial
from typing import Any, ClassVar

import numpy as np
from matplotlib.axes import Axes

from papers.base import EXPERIMENTS, Claim, Findings, PaperResult
from papers.numbers import listing
from papers.run_cache import RunCache
from raylfl.core.arrays import Floats, Ints
from raylfl.report.curves import log_axis
from raylfl.report.figures import Panel, composed
from raylfl.report.style import PALETTE, rc
from raylfl.report.wording import number
from raylfl.theory import fedacs, fedaware, focus, sfl
from raylfl.theory.quadratic import QuadraticProblem

PlotLine = tuple[int, str, Any, Any]  # colour, matplotlib's format, x, y


def problem_of(clients: int, dim: int, seed: int = 0) -> QuadraticProblem:
    """A random problem with equally weighted clients, whose Hessians have eigenvalues in [0.2, 1]."""
    draw = np.random.default_rng(seed)
    hessians = np.empty((clients, dim, dim))
    for i in range(clients):
        q, _ = np.linalg.qr(draw.standard_normal((dim, dim)))
        hessians[i] = (q * 5.0 ** -draw.random(dim)) @ q.T
    linear = draw.standard_normal((clients, dim))
    return QuadraticProblem(hessians, linear, np.zeros(clients), np.full(clients, 1 / clients))


def take_steps(problem: QuadraticProblem, i: int, x: Floats, steps: int, eta: float) -> Floats:
    """The parameters of client i after its local steps from x."""
    for _ in range(steps):
        x = x - eta * (problem.hessians[i] @ x - problem.linear[i])
    return x


def distance(problem: QuadraticProblem, x: Floats) -> float:
    return float(np.linalg.norm(x - problem.optimum))


class TheoryFigure(PaperResult):
    """A figure with one panel that is computed without runs; log: the axes on a log scale, such as `xy`."""

    stem: ClassVar[str]
    axes: ClassVar[tuple[str, str]]
    log: ClassVar[str] = "xy"

    @abstractmethod
    def compute(self) -> tuple[dict[str, PlotLine], list[Claim]]:
        """The curves by label, and the claims."""

    def run(self, cache: RunCache) -> Findings:
        lines, claims = self.compute()

        def draw(ax: Axes) -> None:
            for label, (color, style, x, y) in lines.items():
                ax.plot(x, y, style, color=PALETTE[color], label=label, fillstyle="none")
            ax.set(xlabel=self.axes[0], ylabel=self.axes[1])
            for name in self.log:
                ax.set(**{f"{name}scale": "log"})
                log_axis(getattr(ax, f"{name}axis"), *getattr(ax, f"get_{name}lim")())
            ax.legend()

        with rc():
            return Findings((), claims, {self.stem: composed([Panel(self.stem, draw, (5.4, 3.4))])})


@EXPERIMENTS.register("theory/sfl-bound", paper="SFL [2] Thms 1, 2")
class SflBound(TheoryFigure):
    """SFL's and PFL's (parallel: FedAvg) bounds at the largest step size that both admit, with their runs."""

    stem, axes, log = "sfl-bound", ("rounds", "F − F* of the mean iterate"), "y"
    clients, steps, rounds = 8, 5, 400

    def compute(self) -> tuple[dict[str, PlotLine], list[Claim]]:
        problem = problem_of(self.clients, 5)
        L, mu, start = float(problem.smoothness.max()), float(problem.convexity.min()), problem.optimum + 3
        numbers = {"L": L, "mu": mu, "D": distance(problem, start), "sigma": 0.0, "zeta_star": problem.zeta_star}
        eta = sfl.convex_step(sfl.Setting(True, self.clients, self.clients, self.steps, 1.0), L).largest
        lines, claims, rounds = dict[str, PlotLine](), [], list(range(1, self.rounds + 1))
        for color, (name, sequential) in enumerate((("PFL", False), ("SFL", True))):
            setting = sfl.Setting(sequential, self.clients, self.clients, self.steps, eta)
            path = self.path(problem, sequential, start, eta)
            means = [sfl.average_weights(setting, r, mu) @ path[: r + 1] for r in rounds]
            gaps = np.array([problem.value(x) - problem.value(problem.optimum) for x in means])
            bounds = [sfl.strongly_convex_bound(setting, r, **numbers).total for r in rounds]
            lines |= {f"{name}, bound": (color, "--", rounds, bounds), f"{name}, run": (color, "-", rounds, gaps)}
            ratio = float((gaps / bounds).max())
            claims.append(Claim(f"{name} stays below its bound", ratio <= 1, f"at most {ratio:.2g} times the bound"))
        return lines, claims

    def path(self, problem: QuadraticProblem, sequential: bool, x: Floats, eta: float) -> Floats:
        """The parameters x_0, ..., x_R [R+1, d] of a run with all clients in every round."""
        draw, path = np.random.default_rng(1), [x]
        for _ in range(self.rounds):
            for i in draw.permutation(self.clients) if sequential else ():
                x = take_steps(problem, i, x, self.steps, eta)
            if not sequential:
                x = np.mean([take_steps(problem, i, x, self.steps, eta) for i in range(self.clients)], axis=0)
            path.append(x)
        return np.array(path)


@EXPERIMENTS.register("theory/focus-speedup", paper="FOCUS [1] eq. 28, remark")
class FocusSpeedup(TheoryFigure):
    """SG-FOCUS's gradient noise over the number of clients N at a step size of 0.1/N: runs, and eq. 28 as proved."""

    stem, axes = "focus-speedup", ("clients N", "mean of |∇F|², step size 0.1/N")
    smoothness, sigma, rounds = 0.25, 1.0, 20_000

    def compute(self) -> tuple[dict[str, PlotLine], list[Claim]]:
        clients, lines, claims = [1, 2, 4, 8, 16, 32, 64, 128], dict[str, PlotLine](), []
        for color, q in enumerate((1.0, 0.5)):
            runs = np.array([self.noise(n, q) for n in clients])
            bounds = [focus.nonconvex_noise_floor(0.1 / n, self.smoothness, n, 1, q, self.sigma) for n in clients]
            lines[f"q = {q:g}, run"] = (color, "o-", clients, runs)
            lines[f"q = {q:g}, bound"] = (color, "--", clients, bounds)
            falls, ratio = float(runs[3] / runs[-1]), float((runs / bounds).max())
            text = f"{falls:.3g} times smaller with 128 clients than with 8"
            claims.append(Claim(f"q = {q:g}: the noise of runs falls as 1/N (linear speed-up)", 11 < falls < 23, text))
            text = f"at most {ratio:.2g} times the bound"
            claims.append(Claim(f"q = {q:g}: runs stay below the bound", ratio <= 1, text))
        return lines, claims

    def noise(self, clients: int, q: float) -> float:
        """The mean of |grad F|^2 over a run from the optimum, f_i = L x^2/2, participation rate q."""
        draw, eta, L = np.random.default_rng(clients), 0.1 / clients, self.smoothness
        x, stored, total = 0.0, np.zeros(clients), 0.0
        for _ in range(self.rounds):
            total += (L * x) ** 2
            part, noise = draw.random(clients) < q, self.sigma * draw.standard_normal(clients)
            stored = np.where(part, L * x + noise, stored)
            x -= eta * float(stored.sum())
        return total / self.rounds


@EXPERIMENTS.register("theory/fedacs-bias", paper="FedACS [3] App. C, eq. 39; fig. 8")
class FedacsBias(TheoryFigure):
    """The bias of FedAvg and FedACS at a finite step size: predicted by eq. 39, measured, and its limit as eta -> 0."""

    stem, axes = "fedacs-bias", ("local learning rate", "distance of the limit from x*")

    def compute(self) -> tuple[dict[str, PlotLine], list[Claim]]:
        n, etas = 20, np.geomspace(1e-4, 0.3, 25)
        problem = problem_of(n, 5, seed=2)
        steps, q = np.arange(1, 40, 2), np.linspace(0.40, 0.02, n)  # preset/fedacs_static
        shares = {"FedAvg": (1 - q) / n, "FedACS": 1 / steps / np.sum(1 / ((1 - q) * steps))}
        lines, apart, predicted = dict[str, PlotLine](), [], {}
        for color, (name, s) in enumerate(shares.items()):
            predicted[name] = np.array([distance(problem, fedacs.limit(problem, s, steps, eta)) for eta in etas])
            measured = np.array([distance(problem, self.end(problem, s, steps, eta)) for eta in etas[15::3]])
            lines[f"{name}, eq. 39"] = (color, "-", etas, predicted[name])
            lines[f"{name}, run"] = (color, "o", etas[15::3], measured)
            apart.append(float(np.abs(measured / predicted[name][15::3] - 1).max()))
        received = 1 - q
        systems = {"communication": received, "computation": steps, "both": received * steps}
        bias = {name: distance(problem, problem.weighted(s / s.sum()).optimum) for name, s in systems.items()}
        lines["FedAvg, as eta → 0"] = (0, ":", etas[[0, -1]], np.full(2, bias["both"]))
        slope = float(np.log(predicted["FedACS"][5] / predicted["FedACS"][0]) / np.log(etas[5] / etas[0]))
        evidence = "FedAvg's bias as eta -> 0: " + listing(bias, partial(number, digits=3))
        grows = "FedACS's bias is proportional to a small step size eta"
        most = "FedAvg's bias is largest if communication and computation are both heterogeneous (fig. 8)"
        return lines, [
            Claim("runs end where eq. 39 predicts", max(apart) < 1e-3, f"relative difference at most {max(apart):.1g}"),
            Claim(grows, abs(slope - 1) < 0.05, f"exponent {slope:.3f}"),
            Claim(most, max(bias, key=bias.__getitem__) == "both", evidence),
        ]

    @staticmethod
    def end(problem: QuadraticProblem, shares: Floats, steps: Ints, eta: float) -> Floats:
        """The expectation of x_r after many rounds; shares: the expected weights of the updates."""
        x = np.zeros(problem.dim)
        for _ in range(min(4000, int(30 / eta))):
            ends = [take_steps(problem, i, x, int(k), eta) for i, k in enumerate(steps)]
            x, earlier = x + shares @ (np.array(ends) - x), x
            if np.linalg.norm(x - earlier) < 1e-13:
                break
        return x


@EXPERIMENTS.register("theory/fedaware-identity", paper="FedAWARE [4] Cor. 3.1")
class FedawareIdentity(TheoryFigure):
    """Gradient diversity along gradient descent: D^2 = 1 + sigma_g^2 / |grad F|^2; the largest surrogate diversity."""

    stem, axes = "fedaware-identity", ("|∇F(x)|", "gradient diversity")

    def compute(self) -> tuple[dict[str, PlotLine], list[Claim]]:
        import torch

        from raylfl.solvers.simplex import min_norm_point

        problem, x = problem_of(6, 8, seed=3), np.full(8, 5.0)
        w, rows = problem.weights, []
        for _ in range(60):
            g = problem.gradients(x)
            norm = float(np.linalg.norm(w @ g))
            best = min_norm_point(torch.from_numpy(g @ g.T)).weights
            identity = fedaware.diversity_bound(fedaware.global_variance(g, w) ** 0.5, norm)
            rows.append((norm, fedaware.diversity(g, w), identity, fedaware.diversity(g, w, best)))
            x = x - 0.1 * w @ g
        norms, diversity, identities, surrogate = np.array(rows).T
        lines: dict[str, PlotLine] = {"largest surrogate diversity": (2, "--", norms, surrogate)}
        lines |= {"D(x)": (0, "-", norms, diversity), "√(1 + σ²/|∇F|²)": (1, "o", norms[::4], identities[::4])}
        apart, least = float(np.abs(diversity / identities - 1).max()), float((surrogate / diversity).min())
        text = "the surrogate diversity at the min-norm weights is at least F's gradient diversity"
        return lines, [
            Claim("Corollary 3.1 is an equality at every x", apart < 1e-9, f"relative difference at most {apart:.1g}"),
            Claim(text, least >= 1 - 1e-9, f"at least {least:.2f} times as large"),
        ]
