"""The contract of an algorithm, flat vectors, the local solver, gradients, keyed randomness, exchange patterns."""
