"""The documentation pack and the prompts: every sample is a valid solution and compiles, and the search finds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from harness.agents import prompting
from harness.agents.documentation import PACK, contents, search, sections
from harness.formats.problems import load_problem
from harness.formats.solutions import check_solution, load_solution
from harness.judge.builder import defines
from harness.model.config import Config
from tests.runner.test_nvrtc import compile_cuda

PROBLEMS = Path(__file__).parents[2] / "problems"
EXAMPLES = sorted(path.parent.name for path in PACK.glob("examples/*/solution.yaml"))
ARCHITECTURES = {
    "hopper_gemm": ("sm_90a",),
    "blackwell_gemm": ("sm_100a",),
    "fused_norm_cuda": ("sm_90a", "sm_100a"),
}
CUDA = [(name, architecture) for name, those in ARCHITECTURES.items() for architecture in those]
BLOCK = re.compile(r"```cuda ([\w ]+)\n(.*?)```", re.DOTALL)
PIECES = sorted(
    {
        (file.name, architecture)
        for file in PACK.glob("*.md")
        for architectures, _ in BLOCK.findall(file.read_text())
        for architecture in architectures.split()
    }
)


def of_problem(name: str) -> Path:
    notes = load_solution(PACK / "examples" / name).spec.notes or ""
    return PROBLEMS / notes.rpartition("for problem ")[2]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_a_solution_of_its_problem(name: str) -> None:
    solution = load_solution(PACK / "examples" / name)
    assert check_solution(solution, load_problem(of_problem(name)).definition) == []


@pytest.mark.parametrize(("name", "architecture"), CUDA)
def test_a_cuda_example_compiles(name: str, architecture: str, tmp_path: Path) -> None:
    spec = load_solution(PACK / "examples" / name).spec
    macros = defines(load_problem(of_problem(name)), spec.params)
    kernels = sorted({str(launch["kernel"]) for launch in spec.launch})
    code = compile_cuda(PACK / "examples" / name / spec.file, tmp_path, architecture, kernels, macros)
    said = (tmp_path / "compile.log").read_text()
    assert code == 0, said
    assert "warning" not in said, said
    assert set(json.loads((tmp_path / "names.json").read_text())["symbols"]) == set(kernels)


@pytest.mark.parametrize(("file", "architecture"), PIECES)
def test_the_pieces_of_cuda_in_the_text_compile(file: str, architecture: str, tmp_path: Path) -> None:
    found = BLOCK.findall((PACK / file).read_text())
    pieces = [code for architectures, code in found if architecture in architectures.split()]
    apart = "\n".join(f"namespace piece_{number} {{\n{code}}}" for number, code in enumerate(pieces))
    source = tmp_path / "pieces.cu"
    source.write_text(f'#include <cuda_bf16.h>\n{apart}\nextern "C" __global__ void nothing() {{}}\n')
    done = compile_cuda(source, tmp_path, architecture, ["nothing"], [])
    assert done == 0, f"{file}: {(tmp_path / 'compile.log').read_text()}"


def test_there_is_text_for_every_language_and_target() -> None:
    assert PIECES == [
        ("10_machine_sm_90a.md", "sm_100a"),
        ("10_machine_sm_90a.md", "sm_90a"),
        ("11_machine_sm_100a.md", "sm_100a"),
    ]
    assert set(ARCHITECTURES) == {
        name for name in EXAMPLES if load_solution(PACK / "examples" / name).spec.language == "cuda"
    }
    titles = contents()
    for words in ("sm_90a", "sm_100a", "Triton", "CuTe DSL", "numerics", "solution.yaml", "bottleneck"):
        assert words.lower() in titles.lower(), words
    for target in ("cpu", "h200", "b200"):
        system = prompting.system(Config(), worker="w01", target=target)
        assert "placeholder" not in system
        assert len(system) > 2500


@pytest.mark.parametrize(
    ("query", "file"),
    [
        ("wgmma descriptor swizzle", "sm_90a"),
        ("tcgen05 tensor memory alloc", "sm_100a"),
        ("triton num_warps autotune", "triton"),
        ("cute dsl compile once", "cute_dsl"),
        ("bf16 accumulate tolerance", "numerics"),
        ("launch plan tensor_map", "solution"),
    ],
)
def test_a_search_finds_the_section(query: str, file: str) -> None:
    assert file in search(query).partition("]")[0]


def test_a_search_without_a_hit_shows_the_contents() -> None:
    assert search("xylophone") == contents()
    assert search("") == contents()
    assert len({section.title for section in sections()}) > 20


def test_only_allowed_languages_are_told_of() -> None:
    cute = prompting.system(Config(languages=("cute_dsl",)), worker="w01", target="h200")
    assert "Languages this run allows: cute_dsl." in cute
    assert "@triton.jit" not in cute
    assert prompting.guides(Config(languages=("cuda",)), "h200") == ("cuda",)
