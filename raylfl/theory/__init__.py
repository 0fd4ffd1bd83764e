"""Theory beside the runs: constants of a problem, step-size bounds, rates and limits of the papers' theorems.

`focus`, `sfl`, `fedacs` and `fedaware` hold the theorems as functions of the papers' symbols; `quadratic` computes the
constants of quadratic problems exactly; `objectives` measures them for any experiment; `summary` puts them together
for `raylfl theory CONFIG`.

The papers: [1] FOCUS, Ying et al. 2025; [2] SFL, Li & Lyu 2023; [3] FedACS, Weng et al. 2025; [4] FedAWARE, Zeng et al.
2024. x0: the initial model; x*: the minimiser of F = sum_i w_i f_i; d: the dimension of x, in shapes.
"""
