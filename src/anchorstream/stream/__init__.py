"""Streams, sampling and chats, above any engine."""
