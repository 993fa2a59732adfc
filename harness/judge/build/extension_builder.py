"""Builds of language cuda_cpp: C++ and CUDA sources with host code, compiled to one shared object in a sandbox.

Every source with a compiler's suffix is compiled, in parallel: .cu by nvcc, others by the C++ compiler. Then the
objects are linked. The headers of a binding come from installed packages: those of TVM-FFI compile in one or two
seconds per source, those of torch in half a minute or more.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from harness.errors import ConfigurationError
from harness.judge.build.builder import (
    ARTEFACT,
    BUILD_S,
    QUIET,
    BuildFailed,
    BuildPaths,
    Built,
    Compilation,
    build_limits,
    cached_artefact,
    compiled,
    compiler,
    content_key,
    defines,
    files_of,
    runs,
)  # fmt: skip
from harness.judge.build.toolkit import Nvcc, find_nvcc, seek_nvcc
from harness.judge.isolation.resource_limits import GIB
from harness.model.config import SandboxKind
from harness.model.problem import Problem
from harness.model.solution import Solution
from harness.runner import compilers
from harness.runner.extension import EXTENSION

_CUDA, _CPP = ".cu", (".cpp", ".cc", ".cxx", ".c")


@dataclass(frozen=True)
class _Binding:
    """Options that a binding adds to the commands."""

    standard: str
    """Option for the C++ standard, used if the solution's flags have none."""
    flags: tuple[str, ...]
    """Options of both compilers."""
    cuda_flags: tuple[str, ...]
    includes: tuple[Path, ...]
    libraries: tuple[Path, ...]
    links: tuple[str, ...]
    versions: tuple[str, ...]
    """Versions of the packages that are compiled against. The artefact depends on them."""


def build_extension(
    problem: Problem, solution: Solution, *, architecture: Callable[[], str], cache_dir: Path, sandbox: SandboxKind
) -> Built:
    """Compile a `cuda_cpp` solution, or take it from the cache.

    Args:
        problem: its constant axes become macros.
        solution: the solution.
        architecture: returns the device's architecture, such as `sm_90a`; called only if there is a .cu source.
        cache_dir: directory of the build cache.
        sandbox: kind of sandbox in which the compilers run.

    Raises:
        BuildFailed: a compiler reported an error, took too long, or wrote too large an artefact; or there is no source
            to compile.
        ConfigurationError: a compiler or the binding's package is missing; the message has the command to install it.
    """
    sources = [name for name in solution.sources if name.endswith((_CUDA, *_CPP))]
    if not sources:
        raise BuildFailed(f"no source to compile: expected one that ends in {', '.join((_CUDA, *_CPP))}")
    cuda = any(name.endswith(_CUDA) for name in sources)
    nvcc = find_nvcc() if cuda else seek_nvcc()
    binding = _tvm_ffi() if (solution.spec.binding or "tvm_ffi") == "tvm_ffi" else _torch()
    commands = _Commands(problem, solution, binding, nvcc, architecture() if cuda else "")
    settings = [compiler(), nvcc.version if nvcc else "", binding.versions, commands.of(sources, "/sources", "/output")]

    def make(scratch: Path) -> Path:
        def request(paths: BuildPaths) -> object:  # a file, because many sources may be too long for an argument
            return commands.of(sources, paths.sources, paths.output)

        limits, shown = build_limits(16 * GIB, processes=256), commands.shown
        run_all = runs(compilers, sandbox)
        compilation = Compilation(lambda paths: [*run_all, paths.request], limits, BUILD_S, shown, request=request)
        return compiled(files_of(solution), compilation, scratch, sandbox) / ARTEFACT

    return cached_artefact(cache_dir, content_key(solution, settings), make)


class _Commands:
    """Command lines of the compilers and of the linker for one solution."""

    def __init__(
        self, problem: Problem, solution: Solution, binding: _Binding, nvcc: Nvcc | None, architecture: str
    ) -> None:
        self._solution, self._binding, self._nvcc, self._architecture = solution, binding, nvcc, architecture
        self._macros = defines(problem, solution.spec.params)
        self._cutlass = _cutlass()

    @property
    def shown(self) -> tuple[Path, ...]:
        """Paths that a sandbox must show to the compilers."""
        paths = [*self._cutlass, *self._binding.includes, *self._binding.libraries]
        if self._nvcc is not None:
            paths.append(self._nvcc.home)
        return tuple(dict.fromkeys(paths))

    def of(self, sources: list[str], inside: str, output: str) -> dict[str, list[list[str]] | list[str]]:
        """Return all commands, for sources and output in these directories."""
        objects = [f"{output}/{number}.o" for number in range(len(sources))]
        compile_all = []
        for name, object_file in zip(sources, objects, strict=True):
            command = self._cuda(inside) if name.endswith(_CUDA) else self._cpp(inside)
            compile_all.append([*command, "-c", f"{inside}/{name}", "-o", object_file])
        link = [compiler()[0], "-shared", *objects, *self._link(), "-o", f"{output}/{ARTEFACT}"]
        return {"compile": compile_all, "link": link}

    def _cpp(self, inside: str) -> list[str]:
        own = self._solution.spec.compile.flags
        includes = [*self._includes(inside), *(f"-I{path}" for path in (self._nvcc.includes if self._nvcc else ()))]
        whole = [compiler()[0], "-O3", "-fPIC", *self._standard(own), *self._binding.flags, *own, *self._macros, *QUIET]
        return [*whole, *includes]

    def _cuda(self, inside: str) -> list[str]:
        assert self._nvcc is not None  # noqa: S101 - there is a .cu source, so `find_nvcc` returned it
        own, number = self._solution.spec.compile.cuda_flags, self._architecture.removeprefix("sm_")
        whole = [str(self._nvcc.program), "-ccbin", compiler()[0], "-O3", "-Xcompiler", "-fPIC", *self._standard(own)]
        whole += [f"-gencode=arch=compute_{number},code={self._architecture}"]
        return [*whole, *self._binding.flags, *self._binding.cuda_flags, *own, *self._macros, *self._includes(inside)]

    def _standard(self, own: tuple[str, ...]) -> list[str]:
        return [] if any(flag.startswith(("-std", "--std")) for flag in own) else [self._binding.standard]

    def _includes(self, inside: str) -> list[str]:
        return [f"-I{path}" for path in (inside, *self._cutlass, *self._binding.includes)]

    def _link(self) -> list[str]:
        nvcc = self._nvcc
        directories = [*self._binding.libraries, *(nvcc.libraries if nvcc else ())]
        flags = [*self._binding.links, *self._solution.spec.compile.link_flags, *(nvcc.runtime if nvcc else ())]
        return [*(f"-L{path}" for path in directories), *flags]


def _tvm_ffi() -> _Binding:
    """Return TVM-FFI's headers and library, without importing it.

    Raises:
        ConfigurationError: the package is missing.
    """
    package = importlib.util.find_spec("tvm_ffi")
    home = Path(package.origin).parent if package is not None and package.origin else None
    if home is None or not (home / "include" / "tvm").is_dir() or not (home / "lib" / "libtvm_ffi.so").is_file():
        raise ConfigurationError(
            "language cuda_cpp with binding tvm_ffi needs the package apache-tvm-ffi, which is not installed",
            remedy="pip install apache-tvm-ffi",
        )
    version = importlib.metadata.version("apache-tvm-ffi")
    return _Binding("-std=c++17", (), (), (home / "include",), (home / "lib",), ("-ltvm_ffi",), (version,))


def _torch() -> _Binding:
    """Return the options with which torch.utils.cpp_extension compiles and links.

    Raises:
        ConfigurationError: Python's headers are missing.
    """
    from torch.utils import cpp_extension  # noqa: PLC0415 - the import takes half a second; only this binding needs it

    python = Path(sysconfig.get_path("include"))
    if not (python / "Python.h").is_file():
        raise ConfigurationError(
            f"language cuda_cpp with binding torch needs Python's headers, and {python}/Python.h does not exist",
            remedy="apt-get install python3-dev, or use binding tvm_ffi, which needs no headers of Python",
        )
    flags = (f"-DTORCH_EXTENSION_NAME={EXTENSION}", "-DTORCH_API_INCLUDE_EXTENSION_H")
    on_device = ("-lc10_cuda", "-ltorch_cuda") if torch.version.cuda else ()
    return _Binding(
        standard="-std=c++20",  # torch uses it since its headers need it; older versions support it too
        flags=(*flags, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"),
        cuda_flags=tuple(cpp_extension.COMMON_NVCC_FLAGS),
        includes=(*map(Path, cpp_extension.include_paths()), python),
        libraries=tuple(map(Path, cpp_extension.library_paths())),
        links=("-lc10", "-ltorch_cpu", "-ltorch", "-ltorch_python", *on_device),
        versions=(torch.__version__, sys.version),
    )


def _cutlass() -> tuple[Path, ...]:
    """Return the directories of CUTLASS's headers, at the place that SOL-ExecBench uses."""
    home = Path(os.environ.get("CUTLASS_DIR", "/usr/local/cutlass"))
    return tuple(path for path in (home / "include", home / "tools" / "util" / "include") if path.is_dir())
