"""Model files: read into a spec, raw tensors and a vocabulary."""
