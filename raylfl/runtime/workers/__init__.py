"""What a worker does with a task, in any process, and how work is asked of it."""
