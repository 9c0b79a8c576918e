"""The compiled core, and the same functions in plain numpy as its oracle."""
