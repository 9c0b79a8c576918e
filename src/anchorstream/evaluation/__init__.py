"""The paper's measurements on any text: perplexity, sinks, cache sizes, recall, latency, endless runs, speed."""
