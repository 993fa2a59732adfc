"""The documentation pack and the prompts: every sample is a valid solution and compiles; the search has results."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from harness.agents import prompting
from harness.agents.documentation import PACK, contents, index_terms, matching_sections, search, sections
from harness.formats.problems import load_problem
from harness.formats.solutions import check_solution, load_solution
from harness.judge.build.builder import defines
from harness.judge.build.cuda_builder import plans_of
from harness.model.config import Config
from tests.runner.test_nvrtc import compile_cuda

PROBLEMS = Path(__file__).parents[2] / "problems"
SAMPLE_PROBLEMS = Path(__file__).parents[1] / "gpu" / "sample_problems"
EXAMPLES = sorted(path.parent.name for path in PACK.glob("examples/*/solution.yaml"))
ARCHITECTURES = {
    "hopper_gemm": ("sm_90a",),
    "hopper_gemm_fast": ("sm_90a",),
    "hopper_attention": ("sm_90a",),
    "paged_decode": ("sm_90a", "sm_100a"),
    "blackwell_gemm": ("sm_100a",),
    "fused_norm_cuda": ("sm_90a", "sm_100a"),
}
ONE_ARCHITECTURE = {
    "sm_90a": {"25_wgmma.md"},
    "sm_100a": {
        "26_tcgen05.md",
        "29_warp_instructions.md",
        "30_packed_math.md",
        "31_low_precision.md",
        "32_block_scaling.md",
        "34_memory_hints.md",
    },
}
CUDA = [(name, architecture) for name, architectures in ARCHITECTURES.items() for architecture in architectures]
BLOCK = re.compile(r"^```cuda ([\w ]+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
HEADERS = "".join(f"#include <cuda_{name}.h>\n" for name in ("bf16", "fp16", "fp8", "fp4"))
QUERIES = yaml.safe_load(Path(__file__).with_name("documentation_queries.yaml").read_text())


@dataclass(frozen=True)
class CodePiece:
    """A block of CUDA C++ in a page, and the architectures that it names."""

    page: str
    line: int
    architectures: tuple[str, ...]
    code: str


def code_pieces(directory: Path = PACK) -> list[CodePiece]:
    pieces = []
    for file in sorted(directory.glob("*.md")):
        text = file.read_text()
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start(2)) + 1
            pieces.append(CodePiece(file.name, line, tuple(match[1].split()), match[2]))
    return pieces


def as_one_source(pieces: list[CodePiece]) -> str:
    """Return one source with each piece in its own namespace; `#line` makes the compiler name the page and line."""
    parts = [
        f'namespace piece_{number} {{\n#line {piece.line} "{piece.page}"\n{piece.code}}}\n'
        for number, piece in enumerate(pieces)
    ]
    return f'{HEADERS}{"".join(parts)}extern "C" __global__ void nothing() {{}}\n'


def of_problem(name: str) -> Path:
    notes = load_solution(PACK / "examples" / name).spec.notes or ""
    key = notes.rpartition("for problem ")[2]
    return next(root / key for root in (PROBLEMS, SAMPLE_PROBLEMS) if (root / key).is_dir())


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_a_solution_of_its_problem(name: str) -> None:
    solution = load_solution(PACK / "examples" / name)
    assert check_solution(solution, load_problem(of_problem(name)).definition) == []


@pytest.mark.parametrize(("name", "architecture"), CUDA)
def test_a_cuda_example_compiles_without_spills(name: str, architecture: str, tmp_path: Path) -> None:
    spec = load_solution(PACK / "examples" / name).spec
    macros = [*defines(load_problem(of_problem(name)), spec.params), "--ptxas-options=-v"]
    kernels = sorted({str(launch["kernel"]) for launch in spec.launch})
    code = compile_cuda(PACK / "examples" / name / spec.file, tmp_path, architecture, kernels, macros)
    log = (tmp_path / "compile.log").read_text()
    assert code == 0, log
    assert log.count("0 bytes spill stores, 0 bytes spill loads") == len(kernels), log
    for complaint in ("warning", "serialized", "ignored", "injected"):
        assert complaint not in log, log
    assert set(json.loads((tmp_path / "names.json").read_text())["symbols"]) == set(kernels)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", sorted(name for name, architectures in ARCHITECTURES.items() if len(architectures) == 1)
)
def test_a_sample_of_one_architecture_names_it_and_fails_on_the_other(name: str, tmp_path: Path) -> None:
    (own,) = ARCHITECTURES[name]
    spec = load_solution(PACK / "examples" / name).spec
    assert (spec.notes or "").startswith(f"{own} only;")
    other_architecture = "sm_100a" if own == "sm_90a" else "sm_90a"
    kernels = sorted({str(launch["kernel"]) for launch in spec.launch})
    macros = defines(load_problem(of_problem(name)), spec.params)
    assert compile_cuda(PACK / "examples" / name / spec.file, tmp_path, other_architecture, kernels, macros) == 1
    instruction = "wgmma" if own == "sm_90a" else "tcgen05"
    assert instruction in (tmp_path / "compile.log").read_text()


def test_the_launch_plans_of_the_examples_resolve_for_every_workload() -> None:
    for name in ARCHITECTURES:
        problem, solution = load_problem(of_problem(name)), load_solution(PACK / "examples" / name)
        plans = plans_of(problem, solution)
        assert set(plans) == {workload.uuid for workload in problem.workloads}
        assert all(plan.launches for plan in plans.values())


def test_examples_that_pages_and_prompts_name_exist() -> None:
    pages = [*PACK.glob("*.md"), *prompting.PROMPTS.glob("*.md")]
    named = {name for page in pages for name in re.findall(r"examples/(\w+)", page.read_text())}
    assert named <= set(EXAMPLES)
    assert set(EXAMPLES) <= named


@pytest.mark.slow
@pytest.mark.parametrize("architecture", ["sm_90a", "sm_100a"])
def test_the_pieces_of_cuda_in_the_pages_compile(architecture: str, tmp_path: Path) -> None:
    pieces = [piece for piece in code_pieces() if architecture in piece.architectures]
    assert len({piece.page for piece in pieces}) > 10
    source = tmp_path / "pieces.cu"
    source.write_text(as_one_source(pieces))
    # Relocatable code keeps functions that no kernel calls: without it their inline PTX would never be assembled.
    code = compile_cuda(source, tmp_path, architecture, ["nothing"], ["-rdc=true"])
    assert code == 0, (tmp_path / "compile.log").read_text()


def test_wrong_ptx_in_a_page_fails_to_compile_and_the_message_names_the_page(tmp_path: Path) -> None:
    (tmp_path / "99_wrong.md").write_text('# Wrong\n```cuda sm_90a\n__device__ void f() { asm("mma.wrong;"); }\n```\n')
    (tmp_path / "98_typo.md").write_text("# Typo\n\n```cuda sm_90a\n__device__ int f() { return missing; }\n```\n")
    wrong = {piece.page: piece for piece in code_pieces(tmp_path)}
    source = tmp_path / "pieces.cu"
    source.write_text(as_one_source([wrong["99_wrong.md"]]))
    assert compile_cuda(source, tmp_path, "sm_90a", ["nothing"], ["-rdc=true"]) == 1
    assert ".wrong" in (tmp_path / "compile.log").read_text()
    source.write_text(as_one_source([wrong["98_typo.md"]]))
    assert compile_cuda(source, tmp_path, "sm_90a", ["nothing"], ["-rdc=true"]) == 1
    assert '98_typo.md(4): error: identifier "missing"' in (tmp_path / "compile.log").read_text()


def test_pieces_of_one_architecture_are_those_of_its_own_instructions() -> None:
    only = {piece.architectures[0]: set[str]() for piece in code_pieces() if len(piece.architectures) == 1}
    for piece in code_pieces():
        if len(piece.architectures) == 1:
            only[piece.architectures[0]].add(piece.page)
        else:
            assert piece.architectures == ("sm_90a", "sm_100a"), piece.page
    assert only == ONE_ARCHITECTURE


def test_there_is_text_for_every_language_and_target() -> None:
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


@pytest.mark.parametrize("query_entry", QUERIES, ids=[entry["query"] for entry in QUERIES])
def test_a_query_finds_its_page_in_the_first_two_results(query_entry: dict[str, str]) -> None:
    assert query_entry["page"] in [section.file for section in matching_sections(query_entry["query"], limit=2)]


def test_there_are_sixty_queries_and_each_page_about_kernels_answers_one() -> None:
    assert len(QUERIES) >= 60
    pages = {file.name for file in PACK.glob("*.md") if file.name >= "20"}
    assert {entry["page"] for entry in QUERIES} >= pages


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("cp.async.bulk.tensor", {"cp.async.bulk.tensor", "cp.async.bulk", "cp.async", "bulk", "tensor"}),
        ("m16n8k16", {"m16n8k16", "m16", "n8", "k16"}),
        ("sm_90a", {"sm_90a", "sm90a", "90a"}),
        ("evict_last", {"evict_last", "evict", "last"}),
        ("__shfl_xor_sync", {"shfl_xor_sync", "shfl", "xor", "sync"}),
        ("SmemAllocator", {"smemallocator", "smem", "allocator"}),
        ("mbarrier::complete_tx::bytes", {"mbarrier::complete_tx::bytes", "mbarrier", "complete", "tx", "bytes"}),
        ("stream-K", {"stream-k", "streamk", "stream"}),
        ("Quantisation", {"quantization"}),
    ],
)
def test_a_word_is_searchable_whole_and_by_part(text: str, terms: set[str]) -> None:
    assert terms <= set(index_terms(text))


def test_spelling_case_and_plural_do_not_matter() -> None:
    first = [section.path for section in matching_sections("tensor maps for quantised Tiles")]
    assert first == [section.path for section in matching_sections("TENSOR MAP quantized tile")]
    assert first


def test_a_result_has_its_path_and_size_and_further_ones_a_line() -> None:
    answer = search("wgmma descriptor swizzle")
    assert answer.startswith(
        "[docs/25_wgmma.md > wgmma: warpgroup products on sm_90a > wgmma shared-memory descriptor] ("
    )
    lines = answer.partition("Also related:\n")[2].splitlines()
    assert len(lines) == 4
    for line in lines:
        assert re.fullmatch(r"- \[docs/\d\d_\w+\.md > .+\] \(\d+\.\d kB\): .{10,140}", line), line


def test_a_pages_file_can_be_read_and_is_short() -> None:
    for file in PACK.glob("*.md"):
        assert len(file.read_bytes()) < 9000, file.name


def test_a_search_without_a_hit_shows_the_contents() -> None:
    assert search("xylophone") == contents()
    assert search("") == contents()
    assert len({section.title for section in sections()}) > 20


def test_prompts_name_only_allowed_languages() -> None:
    cute = prompting.system(Config(languages=("cute_dsl",)), worker="w01", target="h200")
    assert "Languages allowed: cute_dsl." in cute
    assert "@triton.jit" not in cute
    assert prompting.guides(Config(languages=("cuda",)), "h200") == ("cuda",)
