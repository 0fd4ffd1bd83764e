"""Data and models that measure more than runs usually do; reproductions name them by class_path."""
