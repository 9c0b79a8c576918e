"""Makes an environment of its own for each peer under benchmarks/.peers.  Run: python benchmarks/setup_peers.py [NAME...]

A peer that is already there is left alone; one that cannot be installed is reported, and the others go on. Only the
standard library is used, so that any Python 3.10 or later runs it.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
PEERS = HERE / ".peers"
CHECKPOINT = PEERS / "smollm2-135m-hf"
TORCH = "torch==2.13.0"

# Writes the default model out as a Hugging Face checkpoint that transformers 4.34 reads too.
EXPORT = """
import json, sys
from pathlib import Path
from transformers import AutoModelForCausalLM, AutoTokenizer
gguf, out = Path(sys.argv[1]), Path(sys.argv[2])
model = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype="float32")
model.is_quantized = False
model.hf_quantizer = None
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
model.save_pretrained(out)
config = json.loads((out / "config.json").read_text())
rope = config.get("rope_parameters") or {}
config.setdefault("rope_theta", rope.get("rope_theta", 10000.0))
config["torch_dtype"] = "float32"
(out / "config.json").write_text(json.dumps(config, indent=2))
(out / "done").write_text("")
"""


@dataclass
class Peer:
    """One environment: what to install, and with which settings of the compiler."""

    packages: list[list[str]]
    environment: dict[str, str] = field(default_factory=dict)


def native_flags() -> dict[str, str]:
    """llama.cpp built for this machine. Its AMX backend crashes (0.3.36, seen on Sapphire Rapids), so it is left out."""
    settings = {"CMAKE_ARGS": "-DGGML_NATIVE=ON"}
    flags = Path("/proc/cpuinfo").read_text() if platform.system() == "Linux" else ""
    if "amx_int8" in flags:
        without = "-mno-amx-int8 -mno-amx-tile -mno-amx-bf16"
        settings |= {"CFLAGS": without, "CXXFLAGS": without}
    return settings


PEERS_BY_NAME = {
    "openvino": Peer([["openvino-genai==2026.4.1"]]),
    "transformers": Peer([[TORCH, "transformers>=5,<6", "accelerate", "gguf", "sentencepiece", "protobuf"]]),
    "attention_sinks": Peer(
        [[TORCH, "transformers==4.34.0", "numpy<2", "einops"], ["--no-deps", "attention-sinks==0.4.0"]]
    ),
    "llama": Peer([["--no-binary", "llama-cpp-python", "llama-cpp-python==0.3.36"]], native_flags()),
}


def python_of(name: str) -> Path:
    """The interpreter of a peer's environment."""
    return PEERS / name / "bin" / "python"


def make(name: str) -> bool:
    """Make one environment; True where it is there afterwards."""
    peer, marker = PEERS_BY_NAME[name], PEERS / name / "installed"
    if marker.exists():
        print(f"{name}: already there")
        return True
    print(f"{name}: installing {', '.join(' '.join(packages) for packages in peer.packages)}", flush=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(PEERS / name)], check=True)
        for packages in peer.packages:
            command = [str(python_of(name)), "-m", "pip", "install", "-q", *packages]
            subprocess.run(command, check=True, env=os.environ | peer.environment)
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"{name}: not installed: {error}", file=sys.stderr)
        return False
    marker.write_text("")
    return True


def export_checkpoint(gguf: Path) -> bool:
    """The default model as a Hugging Face checkpoint, for the peers on PyTorch."""
    if (CHECKPOINT / "done").exists():
        return True
    print(f"writing {CHECKPOINT}", flush=True)
    command = [str(python_of("transformers")), "-c", EXPORT, str(gguf), str(CHECKPOINT)]
    return subprocess.run(command, check=False).returncode == 0


def default_model() -> Path:
    """The default model's file: ANCHORSTREAM_MODEL, or what `anchorstream pull` has fetched."""
    if named := os.environ.get("ANCHORSTREAM_MODEL"):
        return Path(named)
    from anchorstream.formats import hub

    return hub.pull("smollm2-135m")


def main() -> int:
    """Make the peers named on the command line, or all."""
    wanted = sys.argv[1:] or list(PEERS_BY_NAME)
    if unknown := [name for name in wanted if name not in PEERS_BY_NAME]:
        print(f"no peer {unknown[0]!r}: known are {', '.join(PEERS_BY_NAME)}", file=sys.stderr)
        return 2
    made = {name: make(name) for name in wanted}
    if made.get("transformers"):
        made["checkpoint"] = export_checkpoint(default_model())
    return 0 if all(made.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
