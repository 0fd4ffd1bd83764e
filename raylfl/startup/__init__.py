"""What must happen before the first import of torch or Lightning."""
