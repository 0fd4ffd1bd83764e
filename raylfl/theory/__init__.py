"""The theorems of four papers for the problem of an experiment: constants, step-size bounds, rates and limits.

`focus`, `sfl`, `fedacs`, `fedaware` and `fedaware_rate` hold the theorems as functions in the papers' symbols.
`quadratic`, `softmax` and `objectives` compute or estimate the constants of a problem. `promises` selects the
theorems that apply to an experiment, and `summary` is the content of `raylfl theory CONFIG`.

The papers are cited as [1] FOCUS, Ying, Li & Yang, NeurIPS 2025; [2] SFL, Li & Lyu, NeurIPS 2023; [3] FedACS, Weng,
Ren, Xiao & Skoglund 2025; [4] FedAWARE, Zeng, Xu, Pan, Wang & Tang 2024. F = sum_i w_i f_i is the global objective, f_i
the objective of client i and w_i its weight. N: the number of clients; d: the number of parameters; x0: the initial
model; x*: the minimiser of F.
"""
