"""One federated round, from the draw of the cohort to its metrics; it does not depend on Ray."""
