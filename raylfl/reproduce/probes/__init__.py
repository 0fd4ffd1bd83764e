"""Data and models that measure what runs usually do not; experiments name them by class_path."""
