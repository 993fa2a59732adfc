from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ConfigurationError, FormatError
from harness.formats.solution_checks import MAX_SOURCE_BYTES
from harness.formats.solutions import (
    check_solution,
    copy_from_another_gpu,
    dump_solution,
    inspect_solution,
    load_solution,
    read_spec,
    with_params,
)
from harness.model.problem import Definition
from harness.model.solution import ParamValue, SolutionSpec
from tests.formats.problem_files import DEFINITION, SOLUTION, SOURCE, write_solution


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return `cpu` below the current directory, which messages show as `cpu/...`."""
    monkeypatch.chdir(tmp_path)
    return Path("cpu")


CPP = "language: cpp\nentry: kernel.cpp::scaled\n"
TORCH = "language: pytorch\nentry: main.py::run\n"
EXTENSION = "language: cuda_cpp\nentry: main.cu::run\n"
PYTHON = "import torch\n\n\ndef run(x, index, scale, y):\n    y.copy_(x * scale)\n"

MALFORMED: dict[str, tuple[str, str]] = {
    "not YAML": ("language: [cpp\nentry: x", "cpu/solution.yaml:2: not YAML: "),
    "an empty file": ("", "cpu/solution.yaml: null at the top; expected an object"),
    "a list": ("- cpp\n", 'cpu/solution.yaml:1: ["cpp"] at the top; expected an object'),
    "two documents": (CPP + "---\na: 1\n", "not YAML: but found another document"),
    "a key twice": (CPP + "language: cpp\n", "cpu/solution.yaml:3: `language` is given twice; expected each key once"),
    "an anchor": (CPP + "params: &a {B: 1}\n", "cpu/solution.yaml:3: an anchor or alias; expected plain values"),
    "a key that is true": (
        CPP + "yes: 1\n",
        "cpu/solution.yaml:3: the key `yes` is not a string; quote it or rename it",
    ),
    "an unknown key": (
        CPP + "parms: {B: 1}\n",
        "cpu/solution.yaml:3: `parms` is not a key here; did you mean `params`?",
    ),
    "an unknown key below": (
        CPP + "compile: {flag: []}\n",
        "cpu/solution.yaml:3: `compile.flag` is not a key here; did you mean `flags`?",
    ),
    "an unknown key unlike any": (
        CPP + "xyzzy: 1\n",
        "cpu/solution.yaml:3: `xyzzy` is not a key here; expected one of `language`, `entry`, `binding`, `destination_",
    ),
    "no language": (
        "entry: kernel.cpp::scaled\n",
        "cpu/solution.yaml:1: `language` is missing; expected one of cuda, triton, cute_dsl, pytorch, cuda_cpp, cpp",
    ),
    "another language": (
        "language: c++\nentry: kernel.cpp::scaled\n",
        (
            'cpu/solution.yaml:1: `language` is "c++"; '
            'expected one of "cuda", "triton", "cute_dsl", "pytorch", "cuda_cpp", "cpp"'
        ),
    ),
    "no entry": ("language: cpp\n", "cpu/solution.yaml:1: `entry` is missing; expected `file::function`"),
    "an entry without function": (
        "language: cpp\nentry: kernel.cpp\n",
        'cpu/solution.yaml:2: `entry` is "kernel.cpp"; expected `file::function`, such as `kernel.cpp::run`',
    ),
    "an entry that climbs": (
        "language: cpp\nentry: ../kernel.cpp::run\n",
        "cpu/solution.yaml:2: `entry` names the file `../kernel.cpp`; expected a relative path inside the solution",
    ),
    "an entry of another language": (
        "language: cpp\nentry: main.py::run\n",
        (
            "cpu/solution.yaml:2: `entry` names the file `main.py`; "
            "expected a .cpp or .cc or .cxx or .c file for language cpp"
        ),
    ),
    "an entry file that is not there": (
        "language: cpp\nentry: other.cpp::run\n",
        "cpu/solution.yaml:2: `entry` names the file `other.cpp`, which is not there; the sources are `kernel.cpp`",
    ),
    "an entry function that is not there": (
        "language: cpp\nentry: kernel.cpp::scale\n",
        "cpu/solution.yaml:2: `entry` names `scale`; expected a function of `kernel.cpp`",
    ),
    "flags that are a string": (
        CPP + "compile: {flags: -O2}\n",
        'cpu/solution.yaml:3: `compile.flags` is "-O2"; expected a list',
    ),
    "a flag that is a number": (
        CPP + "compile:\n  flags:\n  - -O2\n  - 3\n",
        "cpu/solution.yaml:6: `compile.flags[1]` is 3; expected a string",
    ),
    "a flag of two lines": (
        CPP + 'compile: {flags: ["-O2\\n-g"]}\n',
        'cpu/solution.yaml:3: `compile.flags[0]` is "-O2\\n-g"; expected one flag in one line',
    ),
    "another compiler's flags": (
        CPP + "compile: {cuda_flags: [-O2]}\n",
        "cpu/solution.yaml:3: `compile.cuda_flags` has flags; expected them in `compile.flags` for language cpp",
    ),
    "a binding for C++": (
        CPP + "binding: tvm_ffi\n",
        "cpu/solution.yaml:3: `binding` is for language cuda_cpp only; found language cpp",
    ),
    "a binding for Python": (
        TORCH + "binding: torch\n",
        "cpu/solution.yaml:3: `binding` is for language cuda_cpp only; found language pytorch",
    ),
    "another binding": (
        EXTENSION + "binding: pybind11\n",
        'cpu/solution.yaml:3: `binding` is "pybind11"; expected one of "tvm_ffi", "torch"',
    ),
    "a binding in another spelling": (
        EXTENSION + "binding: tvm-ffi\n",
        'cpu/solution.yaml:3: `binding` is "tvm-ffi"; expected one of "tvm_ffi", "torch"',
    ),
    "a binding that is a list": (
        EXTENSION + "binding: [torch]\n",
        'cpu/solution.yaml:3: `binding` is ["torch"]; expected one of "tvm_ffi", "torch"',
    ),
    "a binding misspelt": (
        EXTENSION + "bindings: torch\n",
        "cpu/solution.yaml:3: `bindings` is not a key here; did you mean `binding`?",
    ),
    "an extension with a launch plan": (
        EXTENSION + "launch: [{kernel: k}]\n",
        "cpu/solution.yaml:3: `launch` is for language cuda only; found language cuda_cpp",
    ),
    "an extension in Python": (
        "language: cuda_cpp\nentry: main.py::run\n",
        (
            "cpu/solution.yaml:2: `entry` names the file `main.py`; "
            "expected a .cu or .cpp or .cc or .cxx file for language cuda_cpp"
        ),
    ),
    "a linker's flag that is a number": (
        EXTENSION + "compile: {link_flags: [-lcuda, 12]}\n",
        "cpu/solution.yaml:3: `compile.link_flags[1]` is 12; expected a string",
    ),
    "flags for Python": (
        TORCH + "compile: {flags: [-O2]}\n",
        "cpu/solution.yaml:3: `compile.flags` has flags; expected none for language pytorch",
    ),
    "a launch plan for C++": (
        CPP + "launch: [{kernel: k}]\n",
        "cpu/solution.yaml:3: `launch` is for language cuda only; found language cpp",
    ),
    "no launch plan for CUDA": (
        "language: cuda\nentry: kernel.cu::k\n",
        "cpu/solution.yaml:1: `launch` is missing; expected the launches of language cuda, in order",
    ),
    "a parameter that is a list": (
        CPP + "params:\n  BLOCK: [1, 2]\n",
        "cpu/solution.yaml:4: `params.BLOCK` is [1, 2]; expected a number, a string or true or false",
    ),
    "a parameter that is a date": (
        CPP + "params: {BLOCK: 2026-11-21}\n",
        "cpu/solution.yaml:3: `params.BLOCK` is a timestamp; expected plain values (quote it)",
    ),
    "a parameter that is infinite": (
        CPP + "params: {BLOCK: .inf}\n",
        "cpu/solution.yaml:3: `params.BLOCK` is .inf; expected a finite number",
    ),
    "a parameter that no float can represent": (
        CPP + "params: {BLOCK: 1.0e+999}\n",
        "cpu/solution.yaml:3: `params.BLOCK` is 1.0e+999; expected a finite number",
    ),
    "a parameter that is no name": (
        CPP + "params: {BLOCK-M: 1}\n",
        (
            "cpu/solution.yaml:3: `params.BLOCK-M` is no usable name; "
            "expected a C identifier that does not begin with `__`"
        ),
    ),
    "a reserved parameter": (
        CPP + "params: {__AVX2__: 1}\n",
        "cpu/solution.yaml:3: `params.__AVX2__` is no usable name; ",
    ),
    "an axis as parameter": (
        CPP + "params: {AXIS_rows: 1}\n",
        (
            "cpu/solution.yaml:3: `params.AXIS_rows` clashes with the macros of axes; "
            "expected a name that does not begin with `AXIS_`"
        ),
    ),
    "a word as parameter": (
        CPP + "params: {float: 1}\n",
        "cpu/solution.yaml:3: `params.float` is a word of the language; expected a name of its own",
    ),
    "a parameter of two lines": (
        CPP + 'params: {MODE: "a\\nb"}\n',
        'cpu/solution.yaml:3: `params.MODE` is "a\\nb"; expected one line of at most 200 characters',
    ),
    "a tuned name that is no parameter": (
        CPP + "params: {BLOCK: 1}\ntune: {BLOK: [1]}\n",
        "cpu/solution.yaml:4: `tune.BLOK` is not among `params`; did you mean `BLOCK`?",
    ),
    "a tuned parameter that is off its list": (
        CPP + "params: {BLOCK: 3}\ntune: {BLOCK: [1, 2]}\n",
        "cpu/solution.yaml:3: `params.BLOCK` is 3; expected one of the values of `tune.BLOCK`",
    ),
    "a truth for a number": (
        CPP + "params: {BLOCK: true}\ntune: {BLOCK: [1, 2]}\n",
        "cpu/solution.yaml:3: `params.BLOCK` is true; expected one of the values of `tune.BLOCK`",
    ),
    "nothing to tune": (
        CPP + "params: {BLOCK: 3}\ntune: {BLOCK: []}\n",
        "cpu/solution.yaml:4: `tune.BLOCK` has 0 values; expected 1 to 256",
    ),
    "a value twice": (
        CPP + "params: {BLOCK: 3}\ntune: {BLOCK: [3, 3]}\n",
        "cpu/solution.yaml:4: `tune.BLOCK` lists a value twice; expected different values",
    ),
    "a truth in quotes": (
        CPP + 'destination_passing: "yes"\n',
        'cpu/solution.yaml:3: `destination_passing` is "yes"; expected true or false',
    ),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_solution_is_named_with_its_line_and_field(name: str, directory: Path) -> None:
    text, message = MALFORMED[name]
    write_solution(directory, text)
    with pytest.raises(FormatError) as caught:
        load_solution(directory)
    assert message in str(caught.value)


def test_a_good_solution_is_read_whole(directory: Path) -> None:
    write_solution(directory, SOLUTION, **{"kernel.cpp": SOURCE, "inner/part.h": "", "README.md": "notes"})
    (directory / "__pycache__").mkdir()
    (directory / "__pycache__/x.pyc").write_bytes(b"\xff")
    solution = load_solution(directory)
    assert solution.sources == ("README.md", "inner/part.h", "kernel.cpp")
    assert (solution.spec.file, solution.spec.function) == ("kernel.cpp", "scaled")
    assert solution.spec.params == {"BLOCK": 4, "MODE": "a"}
    assert solution.spec.tune == {"BLOCK": (2, 4)}
    assert solution.spec.destination_passing


@pytest.mark.parametrize(
    "source",
    [
        PYTHON,
        "from main2 import run\n",
        "run = torch.compile(lambda x: x)\n",
        "import triton\n\n@triton.jit\ndef run(x): pass\n",
    ],
)
def test_a_python_entry_may_be_any_top_level_name(source: str, directory: Path) -> None:
    write_solution(directory, TORCH, **{"main.py": source})
    assert load_solution(directory).spec.language == "pytorch"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def run(:\n", "cpu/main.py:1: not Python: invalid syntax"),
        (
            "class A:\n    def run(self): pass\n",
            "cpu/solution.yaml:2: `entry` names `run`; expected a top-level function",
        ),
        ("x = '\0'\n", "cpu/main.py: not Python: "),
    ],
)
def test_a_python_entry_that_cannot_be_called_is_named(source: str, message: str, directory: Path) -> None:
    write_solution(directory, TORCH, **{"main.py": source})
    with pytest.raises(FormatError) as caught:
        load_solution(directory)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("definition.json", "`definition.json` is the name of a problem's file; expected a name of its own"),
        ("inner/workload.jsonl", "`workload.jsonl` is the name of a problem's file; expected a name of its own"),
        ("reference.py", "`reference.py` is the name of a problem's file; expected a name of its own"),
        ("json.py", "`json.py` would shadow the module `json`, which the runner needs; expected another name"),
        ("torch/__init__.py", "`torch` would shadow the module `torch`, which the runner needs; expected another name"),
        ("numpy.py", "`numpy.py` would shadow the module `numpy`, which the runner needs; expected another name"),
        ("sitecustomize.py", "`sitecustomize.py` would shadow the module `sitecustomize`, which the runner needs"),
        ("harness/x.py", "`harness` would shadow the module `harness`, which the runner needs"),
        ("struct.cpython-311-x86_64-linux-gnu.so", "would shadow the module `struct`, which the runner needs"),
        (".git/config", "part of a git directory; expected sources only"),
    ],
)
def test_a_source_that_would_take_anothers_place_is_refused(name: str, message: str, directory: Path) -> None:
    write_solution(directory, TORCH, **{"main.py": PYTHON, name: "x = 1\n"})
    with pytest.raises(FormatError) as caught:
        load_solution(directory)
    assert message in str(caught.value)
    assert caught.value.where == f"cpu/{name}"


def test_links_pipes_and_binaries_are_refused(directory: Path) -> None:
    write_solution(directory)
    (directory / "passwd").symlink_to("/etc/passwd")
    (directory / "etc").symlink_to("/etc")
    os.mkfifo(directory / "pipe")
    (directory / "blob.o").write_bytes(b"\x7fELF\xff")
    _, errors = inspect_solution(directory)
    assert sorted(str(error) for error in errors) == [
        "cpu/blob.o: not UTF-8 text at byte 4; expected sources only",
        "cpu/etc: a symbolic link; expected plain files in a solution",
        "cpu/passwd: a symbolic link; expected plain files in a solution",
        "cpu/pipe: not a plain file; expected plain files in a solution",
    ]


def test_a_directory_that_is_a_link_is_refused(directory: Path, tmp_path: Path) -> None:
    directory.symlink_to(write_solution(tmp_path / "elsewhere"))
    with pytest.raises(FormatError, match=r"^cpu: no such directory; expected a solution$"):
        load_solution(directory)


def test_sizes_are_bounded(directory: Path) -> None:
    large = "/" * MAX_SOURCE_BYTES
    write_solution(directory, SOLUTION, **{"kernel.cpp": SOURCE, **{f"{n}.h": large for n in range(5)}})
    (directory / "huge.h").write_text(large + "/")
    _, errors = inspect_solution(directory)
    assert [str(error) for error in errors] == [
        "cpu/huge.h: 1048577 bytes; expected at most 1048576 a file",
        f"cpu: {5 * MAX_SOURCE_BYTES + len(SOURCE) + len(SOLUTION)} bytes in all; expected at most 4194304",
    ]


def test_a_missing_solution_yaml_is_named(directory: Path) -> None:
    (write_solution(directory) / "solution.yaml").unlink()
    with pytest.raises(FormatError, match=r"^cpu/solution.yaml: no such file; expected one beside the sources$"):
        load_solution(directory)


def test_a_python_parameter_may_not_be_an_input(directory: Path) -> None:
    write_solution(directory, TORCH + "params: {scale: 1}\n", **{"main.py": PYTHON})
    errors = check_solution(load_solution(directory), Definition.model_validate(_as_python(DEFINITION)))
    assert [str(error) for error in errors] == [
        "cpu/solution.yaml:3: `params.scale` is also an input or output of the problem; expected a keyword of its own"
    ]


def _as_python(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _as_python(item) for key, item in value.items()}
    return tuple(value) if isinstance(value, list) else value


def test_a_dumped_spec_reads_back() -> None:
    spec, _, errors = read_spec(
        SOLUTION + "notes: 'one: line'\ncompile: {flags: [-O2, -funroll-loops]}\n", where="here"
    )
    assert spec is not None, errors
    text = dump_solution(spec)
    assert read_spec(text, where="there")[::2] == (spec, [])
    assert [line.split(":")[0] for line in text.splitlines() if not line.startswith(" ")] == [
        "language", "entry", "compile", "params", "tune", "notes",
    ]  # fmt: skip


def test_new_params_leave_every_other_byte() -> None:
    text = SOLUTION + "notes: BLOCK 4, MODE a, äöü\n"
    changed = with_params(text, {"BLOCK": 2, "MODE": "b # c"})
    assert changed == text.replace("BLOCK: 4", "BLOCK: 2").replace('MODE: "a"', "MODE: 'b # c'")
    block = "# é\nparams:\n  BLOCK: 4  # rows\n  FAST: true\nlanguage: cpp\n"
    assert with_params(block, {"FAST": False, "BLOCK": 1e-7}) == (
        "# é\nparams:\n  BLOCK: 1.0e-07  # rows\n  FAST: false\nlanguage: cpp\n"
    )


def test_params_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"`OTHER` is not among the params of this solution.yaml"):
        with_params(SOLUTION, {"OTHER": 1})


PARAM_VALUES: st.SearchStrategy[ParamValue] = st.one_of(
    st.integers(-(2**60), 2**60),
    st.booleans(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=40),
)


@given(first=PARAM_VALUES, second=PARAM_VALUES)
def test_any_params_survive_the_file(first: ParamValue, second: ParamValue) -> None:
    text = with_params(SOLUTION.replace("tune:\n  BLOCK: [2, 4]\n", ""), {"BLOCK": first, "MODE": second})
    spec, _, errors = read_spec(text, where="here")
    assert spec is not None, errors
    assert spec.params == {"BLOCK": first, "MODE": second}
    assert [type(value) for value in spec.params.values()] == [type(first), type(second)]
    assert read_spec(dump_solution(spec), where="there")[::2] == (spec, [])


@given(data=st.data())
def test_a_mutated_solution_loads_or_is_a_format_error(data: st.DataObject, tmp_path: Path) -> None:
    at = data.draw(st.integers(0, len(SOLUTION)))
    piece = data.draw(
        st.sampled_from(["{", "[", ":", "\n", "- ", "&a", "*a", "!!", "? ", "\x00", "é", "2026-01-01", "'"])
    )
    write_solution(tmp_path / "cpu", SOLUTION[:at] + piece + SOLUTION[at:])
    solution, errors = inspect_solution(tmp_path / "cpu")
    assert (solution is None) == bool(errors)


def test_the_spec_forbids_unknown_keys() -> None:
    assert yaml.safe_load(dump_solution(SolutionSpec(language="cpp", entry="a.cpp::f"))) == {
        "language": "cpp",
        "entry": "a.cpp::f",
    }


def test_a_gpu_begins_with_the_solution_of_the_nearest(tmp_path: Path) -> None:
    for target in ("cpu", "b200", "h200"):
        place = tmp_path / "solutions" / target
        place.mkdir(parents=True)
        (place / "solution.yaml").write_text(target)
    assert copy_from_another_gpu(tmp_path, "cpu") is None
    assert copy_from_another_gpu(tmp_path, "h200") is None
    assert copy_from_another_gpu(tmp_path, "h100") == "h200"
    assert (tmp_path / "solutions/h100/solution.yaml").read_text() == "h200"
    assert copy_from_another_gpu(tmp_path, "a100") == "b200"
    assert copy_from_another_gpu(tmp_path / "nowhere", "h100") is None
