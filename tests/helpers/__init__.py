"""Tiny models, oracles and files for the tests."""
