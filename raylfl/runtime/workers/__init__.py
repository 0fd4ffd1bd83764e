"""Workers, which carry out tasks in any process, and the backend interface to them."""
