"""One federated round, from drawing the cohort to its metrics; knows a `Backend`, not Ray."""
