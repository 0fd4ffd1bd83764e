"""Shipped models: the networks of the papers' tables and the objectives of their synthetic problems."""
