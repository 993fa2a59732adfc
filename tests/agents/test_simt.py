"""Device code of the documentation computes correct results in an emulation of CUDA threads by host threads.

tests/gpu/test_documentation.py judges whole examples on a GPU; only these tests run parts of algorithms.
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
"""Namespace in pieces.cpp -> a text that only its piece contains."""
LOCKED = "{{ const std::lock_guard<std::mutex> held(memory_lock); {} }}"
PTX = (
    (r'asm volatile\("st\.release[^"]*" ::"l"\(flag\)[^;]*\);', LOCKED.format("*flag = 1;")),
    (r'asm volatile\("ld\.acquire[^"]*" : "=r"\((\w+)\) : "l"\(flag\)[^;]*\);', LOCKED.format(r"\1 = *flag;")),
    (r'asm volatile\("st\.relaxed[^"]*" ::"l"\(state \+ tile\)[^;]*\);', LOCKED.format("state[tile] = word;")),
    (r'asm volatile\("ld\.relaxed[^"]*" : "=l"\((\w+)\)[^;]*\);', LOCKED.format(r"\1 = state[at];")),
)
"""Inline PTX of these pieces -> the same access under the emulation's lock."""


MACROS = {
    "hopper_attention": {"AXIS_head_dim": 128},
    "hopper_gemm_fast": {"AXIS_k": 256, "AXIS_n": 512, "STAGES": 3, "TALL": 2},
    "fused_norm_cuda": {"AXIS_hidden": 4096, "THREADS": 128},
    "paged_decode": {"AXIS_page_size": 16, "AXIS_kv_heads": 8, "AXIS_q_heads": 32, "STAGES": 3, "LEAST": 4},
}
BODIES: dict[str, dict[str, str]] = {
    "fused_norm_cuda": {},
    "hopper_attention": {
        "address": "return shared_address(p);",
        "init": "barrier_init(barrier, arrivals);",
        "arrive": "barrier_arrive(barrier);",
        "wait": "barrier_wait(barrier, parity);",
        "load_tile": "barrier_expect(barrier, TILE); for (int half = 0; half < 2; ++half)"
        " tma_load(to + half * BOX, map, half * 64, row, head, barrier);",
        "multiply": "wgmma<128>(d, a, b, add);",
        "multiply_add": "wgmma_registers<128>(d, a, b);",
        "wait_products": "wait_for_products();",
        "power": "return std::exp2(x);",
    },
    "hopper_gemm_fast": {
        "address": "return shared_address(p);",
        "init": "barrier_init(barrier, arrivals);",
        "arrive": "barrier_arrive(barrier);",
        "expect": "barrier_expect(barrier, bytes);",
        "wait": "barrier_wait(barrier, parity);",
        "copy_in": "tma_load(to, map, column, row, 0, barrier);",
        "multiply": "wgmma<256>(d, a, b, add);",
        "wait_products": "wait_for_products();",
        "group_sync": "named_barrier(group + 1);",
    },
    "paged_decode": {
        "address": "return shared_address(p);",
        "wait": "barrier_wait(barrier, parity);",
        "copy_page": "std::memcpy(shared_memory + to, from, PAGE_BYTES); barrier_complete(barrier, PAGE_BYTES);",
        "load_shared": "uint4 v; std::memcpy(&v, shared_memory + at, 16); return v;",
        "mma": "mma_m16n8k16(acc, {a0, 0, a2, 0}, b0, b1);",
    },
}
"""Bodies of the examples' functions that are one instruction each, in the emulation of hopper.h."""
STORE_OF_GEMM = (
    "tma_store(y, tile.column * 256 + half * 128 + box * 64, tile.row * 128 + group * 64, 0, mine + box * BOX_BYTES);"
)
STATEMENTS = (
    (r'asm volatile\("(setmaxnreg|fence|wgmma\.fence|wgmma\.commit|cp\.async\.bulk\.(commit|wait))[^)]*\);', ";"),
    (r'asm volatile\("" : "\+f"\(d\[i\]\)::"memory"\);', ";"),
    (r'asm volatile\("bar\.sync (\d), 128;" ::: "memory"\);', r"named_barrier(\1);"),
    (
        r'asm volatile\("st\.shared\.b32 \[%0\], %1;" ::"r"\(to\), "r"\(([^\n]*)\) : "memory"\);',
        r"{ const unsigned word = \1; std::memcpy(shared_memory + to, &word, 4); }",
    ),
    (
        r'asm volatile\("cp\.async\.bulk\.tensor\.3d\.global.*?: "memory"\);',
        "tma_store(out, half * 64, tile * 128 + group * 64, head, mine + half * BOX);",
    ),
    (
        r'asm volatile\("cp\.async\.bulk\.tensor\.2d\.global.*?: "memory"\);',
        STORE_OF_GEMM,
    ),
    (r'asm volatile\("mbarrier\.init[^"]*\], 1;" ::"r"\(([^)]*)\) : "memory"\);', r"barrier_init(\1, 1);"),
    (r'asm volatile\("mbarrier\.init[^"]*" ::"r"\(([^)]*)\), "r"\((\w+)\) : "memory"\);', r"barrier_init(\1, \2);"),
    (
        r'asm volatile\("mbarrier\.arrive\.expect_tx[^"]*" ::"r"\((\w+)\), "r"\(([^)]*)\) : "memory"\);',
        r"barrier_expect(\1, \2);",
    ),
    (r'asm volatile\("mbarrier\.arrive[^"]*" ::"r"\(([^)]*)\) : "memory"\);', r"barrier_arrive(\1);"),
    (r"extern __shared__ unsigned char raw\[\];", "unsigned char* raw = shared_memory;"),
    (r"__grid_constant__ ", ""),
)
"""Inline PTX in the examples' kernels -> the equivalent code of the emulation."""


def piece_with(marker: str) -> CodePiece:
    (piece,) = (piece for piece in code_pieces(PACK) if marker in piece.code and "sm_90a" in piece.architectures)
    return piece


def for_host(code: str) -> str:
    for pattern, replacement in PTX:
        code = re.sub(pattern, replacement, code)
    code = re.sub(r"^#pragma unroll.*\n", "", code, flags=re.MULTILINE)
    return code.replace('extern "C" ', "")


def errors_of(source_text: str, directory: Path) -> list[tuple[str, float, float]]:
    """Return the name, largest error and limit of each check of the program."""
    source, program = directory / "checks.cpp", directory / "checks"
    source.write_text(source_text)
    flags = ["-std=c++20", "-O2", "-w", "-pthread", f"-I{HERE}"]
    built = subprocess.run(
        ["g++", *flags, str(source), "-o", str(program)], capture_output=True, text=True, timeout=300, check=False
    )
    assert built.returncode == 0, built.stderr[:4000]
    completed = subprocess.run([str(program)], capture_output=True, text=True, timeout=500, check=False)
    assert completed.returncode == 0, completed.stderr
    rows = (line.split() for line in completed.stdout.splitlines())
    return [(name, float(error), float(limit)) for name, error, limit in rows]


def test_every_piece_gives_the_numbers_of_a_plain_loop(tmp_path: Path) -> None:
    pieces = {name: piece_with(marker) for name, marker in NAMESPACES.items()}
    spaces = [
        f'namespace {name} {{\n#line {piece.line} "{piece.page}"\n{for_host(piece.code)}}}\n'
        for name, piece in pieces.items()
    ]
    checks = (HERE / "pieces.cpp").read_text()
    errors = errors_of(f'#include "simt.h"\n{"".join(spaces)}\n#line 1 "pieces.cpp"\n{checks}', tmp_path)
    assert len(errors) == 15
    assert [row for row in errors if not row[1] <= row[2]] == []


def with_body(code: str, function: str, body: str) -> str:
    """Return the code with the body of one device function replaced."""
    start = re.search(rf"^__device__ [^\n]*\b{function}\([^\n]*?\) {{", code, re.MULTILINE)
    assert start is not None, function
    end = re.search(r" }$|^}$", code[start.end() :], re.MULTILINE)
    assert end is not None, function
    return code[: start.end()] + f" {body} }}" + code[start.end() + end.end() :]


def example_for_host(name: str, macros: dict[str, int]) -> str:
    code = (PACK / "examples" / name / "kernel.cu").read_text().replace("#include <cuda_bf16.h>", "")
    code = re.sub(r"struct alignas\(64\) TensorMap {.*?};", "using TensorMap = TmaTensor;", code, flags=re.DOTALL)
    for function, body in BODIES[name].items():
        code = with_body(code, function, body)
    for pattern, replacement in STATEMENTS:
        code = re.sub(pattern, replacement, code, flags=re.DOTALL)
    code = for_host(code)
    assert "asm" not in code, code[code.index("asm") :][:200]
    defines = "".join(f"#define {macro} {value}\n" for macro, value in macros.items())
    undefines = "".join(f"#undef {macro}\n" for macro in macros if not macro.startswith("AXIS"))
    return f'{defines}namespace {name} {{\n#line 1 "{name}"\n{code}}}\n{undefines}'


def test_every_fast_example_stays_within_its_problems_tolerance(tmp_path: Path) -> None:
    codes = [example_for_host(name, macros) for name, macros in MACROS.items()]
    checks = (HERE / "examples.cpp").read_text()
    errors = errors_of(f'#include "hopper.h"\n{"".join(codes)}\n#line 1 "examples.cpp"\n{checks}', tmp_path)
    assert {name for name, _, _ in errors} == set(MACROS)
    assert len(errors) == 11
    assert [row for row in errors if not row[1] <= row[2]] == []
