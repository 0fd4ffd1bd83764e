"""Theory beside the runs: constants of a problem, step-size bounds, rates and limits of the papers' theorems.

`focus`, `sfl`, `fedacs` and `fedaware` hold the theorems as functions of the papers' symbols; `quadratic` computes the
constants of quadratic problems exactly; `objectives` measures them for any experiment; `summary` puts them together
for `raylfl theory CONFIG`.
"""
