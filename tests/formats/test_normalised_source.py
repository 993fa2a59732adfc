"""Formatting and names of local variables do not change the normalised source; everything else does."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from harness.formats.normalised_source import normalised, source_hash
from harness.formats.solutions import load_solution

PYTHON = '''"""Adds one."""
import torch

SCALE = 2


def run(x, out):
    """Write x + 1."""
    total = x + 1  # one more
    rows = [row * SCALE for row in total]

    def inner(value):
        nonlocal total
        total = value
        return total

    out.copy_(inner(torch.stack(rows)))
'''
CPP = """// adds one
#include <cstdint>
#define WIDTH 4
#define TWICE(x) ((x) + (x))

extern "C" void add(const float *x, float *y, std::int64_t n) { /* in place */
    for (std::int64_t i = 0; i < n; ++i) y[i] = x[i] + 1.0f;
    const char *text = "a // b";
}
"""


def have_equal_normal_forms(name: str, first_source: str, second_source: str) -> bool:
    assert first_source != second_source
    return normalised(name, first_source.encode()) == normalised(name, second_source.encode())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("  # one more", ""),
        ('    """Write x + 1."""\n', ""),
        ('"""Adds one."""\n', ""),
        ("x + 1", "( x+1 )"),
        ("\n\n\ndef run", "\n\ndef run"),
        ("total", "sum_so_far"),
        ("rows", "lines"),
        ("value", "v"),
        ("row ", "r "),
    ],
)
def test_python_of_the_same_meaning_is_the_same(old: str, new: str) -> None:
    changed = PYTHON.replace(old, new)
    changed = changed.replace("for row in", "for r in") if new == "r " else changed
    assert have_equal_normal_forms("kernel.py", PYTHON, changed)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x + 1", "x + 2"),
        ("SCALE = 2", "SCALE = 3"),
        ("row * SCALE", "row * torch"),
        ("return total", "return value"),
        ("run(x, out)", "run(out, x)"),
        ("def run", "def go"),
        ("out.copy_", "out.add_"),
        ("nonlocal total", "pass"),
    ],
)
def test_python_of_another_meaning_is_another(old: str, new: str) -> None:
    assert not have_equal_normal_forms("kernel.py", PYTHON, PYTHON.replace(old, new))


@pytest.mark.parametrize(
    ("first_source", "second_source"),
    [
        ("def f(x):\n    return x\nf(x=1)\n", "def f(y):\n    return y\nf(x=1)\n"),
        ("def f(a=a):\n    return a\n", "def f(b=b):\n    return b\n"),
        ("def f():\n    import a\n    return a\n", "def f():\n    import b\n    return b\n"),
        ("def f():\n    global a\n    a = 1\n", "def f():\n    global b\n    b = 1\n"),
        ("class A:\n    a = 1\n", "class A:\n    b = 1\n"),
        ("def f(v):\n    match v:\n        case a: return a\n", "def f(v):\n    match v:\n        case b: return b\n"),
        ("def f(v):\n    return v.a\n", "def f(v):\n    return v.b\n"),
    ],
)
def test_names_that_others_see_count(first_source: str, second_source: str) -> None:
    assert not have_equal_normal_forms("kernel.py", first_source, second_source)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("// adds one\n", ""),
        ("/* in place */", ""),
        ("/* in place */", "/* in\n#define place */"),
        ("float *x", "float* x"),
        ("i < n", "i<n"),
        (") y[i]", ")\n        y[i]"),
        ("#define WIDTH 4", "#define  WIDTH \\\n 4 // four"),
        ("\n\nextern", "\nextern"),
    ],
)
def test_cpp_of_the_same_tokens_is_the_same(old: str, new: str) -> None:
    assert have_equal_normal_forms("kernel.cu", CPP, CPP.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1.0f", "1.5f"),
        ("a // b", "a//b"),
        ("++i", "+ +i"),
        ("TWICE(x)", "TWICE (x)"),
        ("WIDTH 4\n", "WIDTH 4"),
        ("y[i] =", "y[i] +="),
        ("float *y", "floaty"),
    ],
)
def test_cpp_of_other_tokens_is_another(old: str, new: str) -> None:
    assert not have_equal_normal_forms("kernel.cu", CPP, CPP.replace(old, new))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("kernel.py", b"def f(:\n"),
        ("kernel.py", b"x = " + b"-" * 60_000 + b"1\n"),
        ("kernel.py", b"x = 1" + b" + 1" * 15_000 + b"\n"),
        ("kernel.py", b"\xff\xfe"),
        ("kernel.cu", b'R"(' * 20_000),
        ("kernel.py", b"# " + b"x" * (1 << 16) + b"\n"),
        ("data.bin", b"// no source\n"),
    ],
)
def test_what_cannot_be_normalised_counts_as_it_is(name: str, content: bytes) -> None:
    assert normalised(name, content) == content


def test_settings_and_file_names_count_and_notes_do_not(tmp_path: Path) -> None:
    def hash_of(source: str = CPP, **spec: object) -> str:
        (tmp_path / "kernel.cpp").write_text(source)
        whole = {"language": "cpp", "entry": "kernel.cpp::add", "params": {"WIDTH": 1}, **spec}
        (tmp_path / "solution.yaml").write_text(yaml.safe_dump(whole))
        return source_hash(load_solution(tmp_path))

    first = hash_of()
    assert first.startswith("sha256:")
    assert hash_of(CPP.replace("// adds one", "// add one"), notes="another comment") == first
    assert hash_of(params={"WIDTH": 2}) != first
    assert hash_of(compile={"flags": ["-O2"]}) != first
    (tmp_path / "more.h").write_text("")
    assert hash_of() != first
