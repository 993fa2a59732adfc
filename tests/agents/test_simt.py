"""Pieces of device code in the documentation give right numbers, in an emulation of CUDA threads by host threads.

The GPU at hand judges whole examples (tests/gpu/test_documentation.py); pieces of algorithms are run only here.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from harness.agents.documentation import PACK
from tests.agents.test_documentation import CodePiece, code_pieces

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent / "simt"
NAMESPACES = {
    "online_softmax": "void __launch_bounds__(256) softmax(",
    "gemm": "gemv(",
    "top_k_in_warp": "int warp_top_k(",
    "routing": "void positions(",
    "convolution": "void conv1d(",
    "rotary": "void __launch_bounds__(256) rope(",
    "memory_bound": "void __launch_bounds__(256) gate(",
    "transposed": "void __launch_bounds__(256) transpose(",
    "grouped_gemm": "struct Walk {",
    "stream_k_loop": "void stream_k(",
    "splitting": "bool add_up(",
    "block_scan": "float block_exclusive(",
    "look_back_scan": "float look_back(",
    "recurrences": "Step warp_scan(",
    "normalization": "Moments warp_merge(",
    "int4": "void unpack_int4(",
}
"""Namespace in pieces.cpp -> what only its piece contains."""
LOCKED = "{{ const std::lock_guard<std::mutex> held(memory_lock); {} }}"
PTX = (
    (r'asm volatile\("st\.release[^"]*" ::"l"\(flag\)[^;]*\);', LOCKED.format("*flag = 1;")),
    (r'asm volatile\("ld\.acquire[^"]*" : "=r"\((\w+)\) : "l"\(flag\)[^;]*\);', LOCKED.format(r"\1 = *flag;")),
    (r'asm volatile\("st\.relaxed[^"]*" ::"l"\(state \+ tile\)[^;]*\);', LOCKED.format("state[tile] = word;")),
    (r'asm volatile\("ld\.relaxed[^"]*" : "=l"\((\w+)\)[^;]*\);', LOCKED.format(r"\1 = state[at];")),
)
"""Inline PTX of these pieces -> the same access under the emulation's lock."""


def piece_with(marker: str) -> CodePiece:
    (piece,) = (piece for piece in code_pieces(PACK) if marker in piece.code and "sm_90a" in piece.architectures)
    return piece


def for_host(code: str) -> str:
    for pattern, replacement in PTX:
        code = re.sub(pattern, replacement, code)
    code = re.sub(r"^#pragma unroll.*\n", "", code, flags=re.MULTILINE)
    return code.replace('extern "C" ', "")


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[float, float]]:
    """The largest error and the limit, by check."""
    directory = tmp_path_factory.mktemp("simt")
    pieces = {name: piece_with(marker) for name, marker in NAMESPACES.items()}
    spaces = [
        f'namespace {name} {{\n#line {piece.line} "{piece.page}"\n{for_host(piece.code)}}}\n'
        for name, piece in pieces.items()
    ]
    source = directory / "pieces.cpp"
    checks = (HERE / "pieces.cpp").read_text()
    source.write_text(f'#include "simt.h"\n{"".join(spaces)}\n#line 1 "checks"\n{checks}')
    program = directory / "pieces"
    flags = ["-std=c++20", "-O1", "-w", "-pthread", f"-I{HERE}"]
    built = subprocess.run(
        ["g++", *flags, str(source), "-o", str(program)], capture_output=True, text=True, timeout=300, check=False
    )
    assert built.returncode == 0, built.stderr[:4000]
    done = subprocess.run([str(program)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    rows = (line.split() for line in done.stdout.splitlines())
    return {name: (float(error), float(limit)) for name, error, limit in rows}


def test_every_piece_gives_the_numbers_of_a_plain_loop(errors: dict[str, tuple[float, float]]) -> None:
    assert len(errors) == 15
    assert {name: pair for name, pair in errors.items() if not pair[0] <= pair[1]} == {}
