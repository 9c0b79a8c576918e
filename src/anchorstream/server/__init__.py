"""The server: any OpenAI client gets endless conversations."""
