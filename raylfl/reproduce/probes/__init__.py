"""Data and models with additional measurements; reproductions select them by class_path."""
