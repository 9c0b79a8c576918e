"""Anchors: which tokens are pinned. One small file a strategy."""
