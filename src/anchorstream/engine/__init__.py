"""Engines: a model's weights made ready for one kind of hardware, and the forward pass."""
