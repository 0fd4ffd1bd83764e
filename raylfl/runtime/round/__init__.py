"""One federated round, from the draw of the cohort to its metrics; it uses a `Backend` and does not depend on Ray."""
