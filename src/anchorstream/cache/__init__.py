"""The cache: plans, retention and anchors are pure integers; banks keep the bytes."""
