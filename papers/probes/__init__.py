"""Data and models that record additional measurements; experiments select them by class_path."""
