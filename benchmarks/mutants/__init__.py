"""Mutation runs: small errors put into the code on purpose, one at a time, and the tests that notice them."""
