"""The server beside the bare core: one conversation, eight at once, and a long prompt that comes in beside a reply.

Run: python benchmarks/server.py [--tokens 256] [--rounds 5] [--out FILE]

One conversation on the server and `Stream.generate` on the same model take turns; the last line that is printed is JSON.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx

import anchorstream
import book
import setup_peers
from anchorstream.evaluation import machine

MANY = 8


def main() -> int:
    """Run all three."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=256, help="tokens of each reply")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt", type=int, default=20_000, help="tokens of the long prompt")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    model = setup_peers.default_model()
    command = [sys.executable, "-m", "anchorstream", "serve", str(model), "--port", "0", "--no-keep"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            found = re.search(r"at (\S+) ", server.stdout.readline())
            if found is None:
                sys.exit("the server did not start")
            client = Client(found[1], arguments.tokens)
            llm = anchorstream.load(model)
            figures = {
                **against_the_core(client, llm, arguments.rounds),
                **many_at_once(client, arguments.rounds),
                **beside_a_long_prompt(client, arguments.prompt, llm),
            }
        finally:
            server.terminate()
    for name, value in figures.items():
        print(f"{name:44}{value:>10,.2f}")
    result = {"benchmark": "server", **machine.describe(), "tokens": arguments.tokens, "figures": figures}
    if arguments.out:
        arguments.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result))
    return 0


class Client:
    """Streams replies and notes when each chunk comes."""

    def __init__(self, url: str, tokens: int) -> None:
        self.url = url
        self.tokens = tokens
        while httpx.get(f"{url}/health").status_code != 200:
            time.sleep(0.05)

    def reply(self, session: str, text: str, tokens: int | None = None) -> dict[str, Any]:
        """One streamed reply: its server's timings, and the times at which its chunks came."""
        body = {
            "messages": [{"role": "user", "content": text}],
            "session": session,
            "stream": True,
            "temperature": 0,
            "max_tokens": tokens or self.tokens,
            "ignore_eos": True,
        }
        times, facts = [], {}
        begin = time.perf_counter()
        with httpx.stream("POST", f"{self.url}/v1/chat/completions", json=body, timeout=600) as response:
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    times.append(time.perf_counter())
                    chunk = json.loads(line[6:])
                    facts = chunk if "timings" in chunk else facts
        return {"seconds": times[-1] - begin, **facts}

    def between_tokens(self) -> Histogram:
        """As it stands now."""
        return Histogram(httpx.get(f"{self.url}/metrics").text)


class Histogram:
    """The server's own count of the times between tokens."""

    def __init__(self, exposition: str) -> None:
        name = "anchorstream_time_between_tokens_seconds"
        found = re.findall(rf'{name}_bucket{{le="(.+?)"}} (\S+)', exposition)
        self.buckets = [(float(edge), float(count)) for edge, count in found]
        self.count, self.sum = (float(re.search(rf"{name}_{part} (\S+)", exposition)[1]) for part in ("count", "sum"))

    def mean_until(self, later: Histogram) -> float:
        """Seconds."""
        return (later.sum - self.sum) / (later.count - self.count)

    def quantile_until(self, later: Histogram, share: float) -> float:
        """The edge of the bucket that holds the quantile, in seconds."""
        for (edge, before), (_, after) in zip(self.buckets, later.buckets, strict=True):
            if after - before >= share * (later.count - self.count):
                return edge
        return float("inf")


def against_the_core(client: Client, llm: anchorstream.LLM, rounds: int) -> dict[str, float]:
    """Tokens per second of one conversation at a full cache, on the server and on the core, in turns."""
    stream = llm.stream()
    stream.feed(book.token_ids(llm.tokenizer, book.PATH, 1500))
    client.reply("one", "Tell me a story. " * 300)
    core, server = [], []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in stream.generate(client.tokens, temperature=0, ignore_end=True):
            pass
        core.append(client.tokens / (time.perf_counter() - begin))
        timings = client.reply("one", "Go on.")["timings"]
        server.append(timings["predicted_per_second"])
    one, bare = statistics.median(server), statistics.median(core)
    return {"core, tokens/s": bare, "server, one conversation, tokens/s": one, "share of the core": one / bare}


def many_at_once(client: Client, rounds: int) -> dict[str, float]:
    """All tokens of eight conversations per second, against those of one."""
    for number in range(MANY):
        client.reply(f"many-{number}", "Tell me a story. " * 300, 8)
    alone, together = [], []
    for _ in range(rounds):
        alone.append(client.reply("many-0", "Go on.")["timings"]["predicted_per_second"])
        threads = [threading.Thread(target=client.reply, args=(f"many-{n}", "Go on.")) for n in range(MANY)]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        together.append(MANY * client.tokens / (time.perf_counter() - begin))
    one, many = statistics.median(alone), statistics.median(together)
    return {f"{MANY} conversations, tokens/s": many, f"{MANY} at once / one": many / one}


def beside_a_long_prompt(client: Client, length: int, llm: anchorstream.LLM) -> dict[str, float]:
    """Time between a reply's tokens while a long prompt is read, against the time without."""
    text = llm.detokenize(book.token_ids(llm.tokenizer, book.PATH, length))
    thread = threading.Thread(target=client.reply, args=("many-1", "Go on.", 1_000_000), daemon=True)
    thread.start()
    time.sleep(1.0)
    start = client.between_tokens()
    time.sleep(2.0)
    calm = client.between_tokens()
    begin = time.perf_counter()
    client.reply("reader", text, 1)
    seconds = time.perf_counter() - begin
    busy = client.between_tokens()
    quiet, beside = start.mean_until(calm), calm.mean_until(busy)
    return {
        "time between tokens, quiet, ms": 1e3 * quiet,
        "time between tokens beside a prompt, ms": 1e3 * beside,
        "slowed down by": beside / quiet,
        "99 % of them below, quiet, ms": 1e3 * start.quantile_until(calm, 0.99),
        "99 % of them below, beside a prompt, ms": 1e3 * calm.quantile_until(busy, 0.99),
        "the prompt meanwhile, tokens/s": length / seconds,
    }


if __name__ == "__main__":
    sys.exit(main())
