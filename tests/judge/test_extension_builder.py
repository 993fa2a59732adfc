"""CUDA C++ extensions, built by the real builder and called by a real runner, each in its sandbox.

The tests need no GPU: extensions with host code only are called on tensors in shared memory, as they would be on the
device's. Extensions with device code are compiled if there is an nvcc, and are not run.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.errors import ConfigurationError
from harness.formats.problems import load_problem
from harness.formats.solutions import check_solution, load_solution
from harness.judge import sides
from harness.judge.build import extension_builder, toolkit
from harness.judge.build.builder import BuildFailed, Built
from harness.judge.build.extension_builder import build_extension
from harness.judge.input_data.layout import Layout, layout_of
from harness.judge.isolation.resource_limits import SandboxLimits
from harness.judge.runners import Runner, RunnerFailed, RunnerPlan
from harness.judge.shared_memory import Region
from harness.model.problem import Problem
from harness.model.solution import Solution
from harness.model.verdict import Verdict
from harness.runner import extension, wire
from harness.runner.messages import HostMemory, Load, Program
from tests.judge.extensions import NEEDS_NVCC, TORCH, TVM_FFI, write_extension
from tests.judge.problem_in_memory import problem, tensor

# One process compiles the shared artefact and starts the runner.
pytestmark = [pytest.mark.xdist_group("extensions"), pytest.mark.usefixtures("own_locks")]

EXAMPLES = Path(__file__).parents[2] / "examples" / "cuda_cpp"
PROBLEMS = Path(__file__).parents[2] / "problems"
SLOTS = 3
_WITHIN_S = 60.0


@pytest.fixture(scope="module")
def sample_problem() -> Problem:
    inputs = {"x": tensor("float32", "n"), "factor": {"dtype": "float32", "shape": None}}
    scalar = {"factor": {"type": "scalar", "value": 1.5}}
    return problem(
        inputs,
        {"y": tensor("float32", "n")},
        "def run(x, factor):\n    return x * factor\n",
        {"n": 700},
        input_sources=scalar,
    )


@contextmanager
def fresh_runner(scratch: Path) -> Iterator[Runner]:
    started = Runner(RunnerPlan(sandbox="bubblewrap", limits=SandboxLimits(), scratch=scratch))
    try:
        yield started
    finally:
        started.kill()


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """A runner for tests that load the same artefact, because the dynamic loader identifies a library by its path."""
    with fresh_runner(tmp_path_factory.mktemp("runner")) as started:
        yield started


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache for artefacts that several tests load, so that each is compiled once."""
    return tmp_path_factory.mktemp("cache")


class Arena:
    """Slots of a workload in shared memory, and their contents."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.inputs = Region(SLOTS * layout.input_stride, sealed=True)
        self.outputs = Region(SLOTS * layout.output_stride, sealed=False)
        for slot in range(SLOTS):
            views = layout.input_views(self.inputs.slot(slot, layout.input_stride))
            views["x"].normal_()
            views["factor"].fill_(slot + 1.5)

    def right(self) -> bool:
        """Return true if every slot has the output that the problem requires."""
        for slot in range(SLOTS):
            views = self.layout.input_views(self.inputs.slot(slot, self.layout.input_stride))
            outputs = self.layout.output_views(self.outputs.slot(slot, self.layout.output_stride))
            if not torch.equal(outputs["y"], views["x"] * (slot + 1.5)):
                return False
        return True


def loaded(runner: Runner, sample_problem: Problem, solution: Solution, cache: Path) -> Arena:
    """Build the solution as for a device and load it into the runner, which is ready for the workload."""
    staged = sides.stage_solution(sample_problem, solution, cache_dir=cache, sandbox="bubblewrap")
    assert not staged.sealed
    arena = Arena(layout_of(sample_problem, sample_problem.workloads[0]))
    # The runner still maps the previous file: truncation would invalidate its pages.
    (runner.stage / "artefact.so").unlink(missing_ok=True)
    program = staged.put(sides.Stage(runner.stage, runner.inside))
    load = Load(program, HostMemory(arena.inputs.bytes, arena.outputs.bytes))
    runner.ask(load, wire.Code.LOADED, _WITHIN_S, (arena.inputs.descriptor, arena.outputs.descriptor))
    runner.ask(arena.layout.message(SLOTS, ""), wire.Code.READY, _WITHIN_S)
    return arena


def called(runner: Runner) -> None:
    """Run one batch of every slot.

    Raises:
        RunnerFailed: a call raised.
    """
    runner.processes.resume()
    runner.channel.send_call(11, range(SLOTS))
    record = runner.accept(runner.channel.receive(time.monotonic() + _WITHIN_S))
    assert (record.code, record.call) == (wire.Code.DONE, 11)
    runner.stop()


def built(sample_problem: Problem, solution: Solution, cache: Path, architecture: str = "sm_90a") -> Built:
    return build_extension(
        sample_problem, solution, architecture=lambda: architecture, cache_dir=cache, sandbox="bubblewrap"
    )


def test_a_tvm_ffi_extension_is_built_once_and_computes(
    runner: Runner, sample_problem: Problem, cache: Path, tmp_path: Path
) -> None:
    solution = write_extension(tmp_path / "solution")
    arena = loaded(runner, sample_problem, solution, cache)
    assert not arena.right()
    called(runner)
    assert arena.right()
    assert built(sample_problem, solution, cache).cached


@pytest.mark.parametrize("function", ["returned", "listed"])
def test_an_extensions_return_value_is_delivered(
    runner: Runner, sample_problem: Problem, cache: Path, tmp_path: Path, function: str
) -> None:
    solution = write_extension(tmp_path / "solution", function=function, destination_passing=False)
    arena = loaded(runner, sample_problem, solution, cache)
    called(runner)
    assert arena.right()


def test_tvm_ffi_tensors_become_torch_tensors() -> None:
    import tvm_ffi

    x = torch.arange(3.0)
    own = tvm_ffi.from_dlpack(x)
    plain, nested, named = extension.as_torch([own, tvm_ffi.convert([own]), tvm_ffi.convert({"y": own})])
    for converted in (plain, nested[0], named["y"]):
        assert isinstance(converted, torch.Tensor)
        assert converted.data_ptr() == x.data_ptr()
    assert extension.as_torch(["text", None, 3, x]) == ["text", None, 3, x]


def test_an_extensions_exception_is_quoted(
    runner: Runner, sample_problem: Problem, cache: Path, tmp_path: Path
) -> None:
    arena = loaded(runner, sample_problem, write_extension(tmp_path / "solution", function="refuses"), cache)
    with pytest.raises(RunnerFailed) as failed:
        called(runner)
    assert failed.value.verdict is Verdict.RUNTIME_ERROR
    assert failed.value.reason == "ValueError: x has 1 dimensions, not two"
    assert not arena.right()


def test_an_entry_that_is_not_exported_is_named(
    runner: Runner, sample_problem: Problem, cache: Path, tmp_path: Path
) -> None:
    solution = write_extension(tmp_path / "solution", function="hidden")
    with pytest.raises(RunnerFailed, match=r"no function `hidden`: expected TVM_FFI_DLL_EXPORT_TYPED_FUNC\(hidden, "):
        loaded(runner, sample_problem, solution, cache)


@pytest.mark.slow
def test_a_torch_extension_is_built_once_and_computes(sample_problem: Problem, tmp_path: Path) -> None:
    solution = write_extension(tmp_path / "solution", TORCH, binding="torch")
    with fresh_runner(tmp_path) as runner:
        arena = loaded(runner, sample_problem, solution, tmp_path / "cache")
        called(runner)
    assert arena.right()
    assert built(sample_problem, solution, tmp_path / "cache").cached
    artefact = built(sample_problem, solution, tmp_path / "cache").path
    program = Program("cuda_cpp", "scale", artefact=str(artefact), binding="torch")
    with pytest.raises(AttributeError, match=r'no function `scale`: expected m.def\("scale", '):
        extension.load(Load(program, HostMemory(0, 0)))


@pytest.mark.parametrize(
    ("source", "reason_part"),
    [
        (TVM_FFI.replace("x.ndim()", "x.rank()"), "main.cpp:30:73: error: 'class tvm::ffi::TensorView' has no member"),
        ("int run() { return " + "(" * 9 + "; }\n", "main.cpp:1:29: error: expected primary-expression"),
        ("extern int lost; int run() { return lost; }\n", "undefined reference to `lost'"),
        ('#include "../solution.yaml"\nint run();\n', "main.cpp:1:10: fatal error: ../solution.yaml: No such file"),
        ("char run[80 << 20] = {1};\n", "error"),
    ],
)
def test_a_compiler_or_linker_error_is_quoted(
    sample_problem: Problem, tmp_path: Path, source: str, reason_part: str
) -> None:
    flags = {"link_flags": ["-Wl,-z,defs"]}
    solution = write_extension(tmp_path / "solution", source, compile=flags)
    with pytest.raises(BuildFailed) as failed:
        built(sample_problem, solution, tmp_path / "cache")
    assert reason_part in failed.value.reason.replace("\u2018", "'").replace("\u2019", "'")
    assert "/sources" not in failed.value.reason
    assert "\n" not in failed.value.reason
    assert not list((tmp_path / "cache" / "artefacts").iterdir())


def test_a_missing_library_is_named(sample_problem: Problem, tmp_path: Path) -> None:
    solution = write_extension(tmp_path / "solution", "int run();\n", compile={"link_flags": ["-lnowhere"]})
    with pytest.raises(BuildFailed, match="cannot find -lnowhere"):
        built(sample_problem, solution, tmp_path / "cache")


def test_code_that_runs_while_compiling_or_linking_reads_and_changes_no_file(
    sample_problem: Problem, tmp_path: Path
) -> None:
    secret, planted = tmp_path / "secret", tmp_path / "planted"
    secret.write_text("error: private business")
    script = f"echo error: here >&2; cat {secret} >&2; touch {planted}; exit 1"
    for number, name in enumerate(("flags", "link_flags")):
        compile_spec = {name: ["-wrapper", f"/bin/sh,-c,{script}"]}
        solution = write_extension(tmp_path / f"solution{number}", "int run();\n", compile=compile_spec)
        with pytest.raises(BuildFailed, match="error: here") as failed:
            built(sample_problem, solution, tmp_path / "cache")
        assert "private business" not in failed.value.reason
        assert not planted.exists()


def test_params_and_options_select_the_artefact(sample_problem: Problem, tmp_path: Path) -> None:
    plain = "int run() { return WIDTH * AXIS_n; }\n"
    paths = set()
    variants: tuple[dict[str, Any], ...] = (
        {"params": {"WIDTH": 1}}, {"params": {"WIDTH": 2}}, {"params": {"WIDTH": 1}, "compile": {"flags": ["-O1"]}},
        {"params": {"WIDTH": 1}, "compile": {"link_flags": ["-s"]}},
    )  # fmt: skip
    for number, spec in enumerate(variants):
        build = built(sample_problem, write_extension(tmp_path / f"s{number}", plain, **spec), tmp_path / "cache")
        assert not build.cached
        paths.add(build.path)
    assert len(paths) == len(variants)
    assert built(sample_problem, write_extension(tmp_path / "again", plain, **variants[0]), tmp_path / "cache").cached


def test_a_directory_without_a_source_to_compile_is_no_extension(sample_problem: Problem, tmp_path: Path) -> None:
    solution = write_extension(tmp_path / "solution")
    empty = solution.model_copy(update={"sources": ("parts.h",)})
    with pytest.raises(BuildFailed, match=r"no source to compile: expected one that ends in \.cu, \.cpp"):
        built(sample_problem, empty, tmp_path / "cache")


def test_a_missing_tool_is_named_with_the_command_that_installs_it(
    sample_problem: Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solution = write_extension(tmp_path / "solution", "int run();\n", file="main.cu")
    monkeypatch.setattr(toolkit, "seek_nvcc", lambda: None)
    with pytest.raises(ConfigurationError, match=r"a \.cu source of language cuda_cpp needs nvcc") as missing:
        built(sample_problem, solution, tmp_path / "cache")
    assert str(missing.value.remedy).startswith("pip install nvidia-cuda-nvcc ")
    solution = write_extension(tmp_path / "host", "int run();\n")
    with monkeypatch.context() as patched:
        patched.setattr(importlib.util, "find_spec", lambda _: None)
        with pytest.raises(ConfigurationError, match="needs the package apache-tvm-ffi") as missing:
            built(sample_problem, solution, tmp_path / "cache")
    assert missing.value.remedy == "pip install apache-tvm-ffi"
    solution = write_extension(tmp_path / "torch", "int run();\n", binding="torch")
    monkeypatch.setattr(extension_builder, "sysconfig", SimpleNamespace(get_path=lambda _: str(tmp_path)))
    with pytest.raises(ConfigurationError, match=r"needs Python's headers, and .*/Python\.h does not exist") as missing:
        built(sample_problem, solution, tmp_path / "cache")
    assert str(missing.value.remedy).startswith("apt-get install python3-dev")


def test_a_toolkit_is_found_by_its_headers_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bin/nvcc", "include/cuda_runtime.h", "lib64/stubs/libcuda.so"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("#!/bin/sh\necho one\necho Build cuda_99\n")
    (tmp_path / "bin/nvcc").chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    nvcc = toolkit.find_nvcc()
    assert (nvcc.home, nvcc.version, nvcc.program) == (tmp_path, "Build cuda_99", tmp_path / "bin/nvcc")
    assert nvcc.libraries == (tmp_path / "lib64", tmp_path / "lib64/stubs")
    assert list(nvcc.runtime) == ["-lcudart"]
    (tmp_path / "lib64/libcudart_static.a").touch()
    assert "-lcudart_static" in nvcc.runtime
    (tmp_path / "include/cuda_runtime.h").unlink()
    other_nvcc = toolkit.seek_nvcc()
    assert other_nvcc is None or other_nvcc.home != tmp_path


@pytest.mark.skipif(toolkit.seek_nvcc() is None, reason=NEEDS_NVCC)
def test_nvcc_is_quoted_with_the_users_file_and_line(sample_problem: Problem, tmp_path: Path) -> None:
    source = "__global__ void kernel(float* y) {\n    y[threadIdx.x] = lost;\n}\nvoid run();\n"
    with pytest.raises(BuildFailed) as failed:
        built(sample_problem, write_extension(tmp_path / "solution", source, file="main.cu"), tmp_path / "cache")
    assert failed.value.reason.startswith('main.cu(2): error: identifier "lost" is undefined')


@pytest.mark.slow
@pytest.mark.skipif(toolkit.seek_nvcc() is None, reason=NEEDS_NVCC)
def test_the_example_compiles_for_hopper_and_blackwell(tmp_path: Path) -> None:
    solution = load_solution(EXAMPLES / "swiglu_tvm_ffi")
    swiglu = load_problem(PROBLEMS / "starter" / "swiglu_h14336")
    builds = [built(swiglu, solution, tmp_path / "cache", architecture) for architecture in ("sm_90a", "sm_100a")]
    assert builds[0].path != builds[1].path
    for build in builds:
        assert b"__tvm_ffi_run" in build.path.read_bytes()


@pytest.mark.slow
@pytest.mark.skipif(toolkit.seek_nvcc() is None, reason=NEEDS_NVCC)
def test_device_code_is_compiled_for_the_device_at_hand(sample_problem: Problem, tmp_path: Path) -> None:
    source = """
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#error compiled for another
#endif
__global__ void kernel() {}
void run() { kernel<<<1, 1>>>(); }
"""
    solution = write_extension(tmp_path / "solution", source, file="main.cu")
    assert built(sample_problem, solution, tmp_path / "cache", "sm_90a").path.is_file()
    with pytest.raises(BuildFailed, match="compiled for another"):
        built(sample_problem, solution, tmp_path / "cache", "sm_90")


@pytest.mark.parametrize("name", sorted(path.parent.name for path in EXAMPLES.glob("*/solution.yaml")))
def test_an_example_is_a_solution_of_its_problem(name: str) -> None:
    solution = load_solution(EXAMPLES / name)
    of = load_problem(PROBLEMS / (solution.spec.notes or "").rpartition("for problem ")[2])
    assert check_solution(solution, of.definition) == []
    assert solution.spec.binding == name.removeprefix("swiglu_")
