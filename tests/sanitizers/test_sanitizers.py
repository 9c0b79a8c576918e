"""The core under AddressSanitizer and UBSan: it is built afresh, and the tests that drive it are run with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
TESTS = [
    "tests/kernels",
    "tests/engine/test_engines.py",
    "tests/stream/test_stream.py",
    "tests/stream/test_pool.py::test_any_life_is_what_brute_force_says",
    "tests/cache/test_snapshot.py",
    "tests/formats/test_gguf.py",
]

# An editable installation would be found before the sanitised one.
RUN = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if getattr(finder, "__module__", "").startswith("_frozen_importlib")]
sys.path.insert(0, sys.argv[1])
import pytest, anchorstream.kernels._core as core
assert core.__file__.startswith(sys.argv[1]), core.__file__
sys.exit(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""


def preload(*names: str) -> str:
    """The compiler's runtime libraries, which must be in the process before Python is."""
    compiler = os.environ.get("CXX", "g++")
    paths = [subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip() for name in names]
    if missing := [path for path in paths if not os.path.isabs(path)]:
        pytest.skip(f"the compiler has no {missing[0]}")
    return " ".join(paths)


@pytest.mark.asan
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("isa", ["", "avx2", "portable"])
def test_the_core_is_clean(isa: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    from anchorstream.kernels import native

    if isa and isa not in native.instruction_sets():
        pytest.skip(f"this machine has no {isa}")
    target = tmp_path_factory.getbasetemp() / "sanitised"
    if not target.exists():
        build = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--no-build-isolation",
            "--target",
            str(target),
        ]
        settings = [
            "-C",
            "cmake.define.ANCHORSTREAM_SANITIZE=ON",
            "-C",
            f"build-dir={target}-build",
            "-C",
            "install.strip=false",
        ]
        subprocess.run([*build, *settings, str(ROOT)], check=True)
    environment = os.environ | {
        "LD_PRELOAD": preload("libasan.so", "libubsan.so", "libstdc++.so"),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
        "ANCHORSTREAM_ISA": isa,
        "OPENBLAS_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(target), *TESTS],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
