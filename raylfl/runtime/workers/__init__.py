"""Workers, which run local work and evaluations in any process, and the interface to them (`Backend`)."""
