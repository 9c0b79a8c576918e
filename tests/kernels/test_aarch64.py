"""The AArch64 kernels on a machine of another kind: cross-compiled, and run in an emulator."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
COMPILER, EMULATOR, LIBRARIES = "aarch64-linux-gnu-g++", "qemu-aarch64", "/usr/aarch64-linux-gnu"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_neon_agrees_with_portable(tmp_path: Path) -> None:
    for tool in (COMPILER, EMULATOR):
        if not shutil.which(tool):
            pytest.skip(f"there is no {tool} (Debian: g++-aarch64-linux-gnu, qemu-user)")
    flags = ["-std=c++20", "-O2", "-pthread", f"-I{ROOT}/csrc", f"-I{ROOT}/csrc/include"]
    sources = [path for path in (ROOT / "csrc").glob("*.cpp") if path.name != "bindings.cpp"]
    neon = tmp_path / "neon.o"
    subprocess.run(
        [COMPILER, *flags, "-march=armv8.2-a+dotprod", "-c", ROOT / "csrc/isa/neon.cpp", "-o", neon], check=True
    )
    program = tmp_path / "compare"
    compare = Path(__file__).with_name("compare_isas.cpp")
    subprocess.run(
        [COMPILER, *flags, compare, *sources, ROOT / "csrc/isa/portable.cpp", neon, "-o", program], check=True
    )
    done = subprocess.run([EMULATOR, "-L", LIBRARIES, program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "neon-dotprod" in done.stdout
    assert "all agree" in done.stdout
