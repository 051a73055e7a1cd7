from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablate.errors import UserError
from ablate.study.strict_yaml import parse, read


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("0.001", 0.001),
        ("1.0e-3", 0.001),
        ("2_000", 2000),
        ("null", None),
        ("none", "none"),
        ("true", True),
        ("'off'", "off"),
        ("'010'", "010"),
        ("[4, 1]", [4, 1]),
        ("{a.b: 1}", {"a.b": 1}),
        ("2026-01-01", "2026-01-01"),
    ],
)
def test_one_reading(text: str, value: object) -> None:
    parsed = parse(text, where="f")
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: off", "f, line 1, column 4: off has two readings; write false or 'off'."),
        ("a: Yes", "f, line 1, column 4: Yes has two readings; write true or 'Yes'."),
        ("[010]", "f, line 1, column 2: 010 has two readings; write '010', or the number without"),
        ("12:30", "f, line 1, column 1: 12:30 has two readings; write '12:30'."),
        ("0x1f", "f, line 1, column 1: 0x1f has two readings; write '0x1f', or the number in deci"),
        ("a: 1\nb: 2\na: 3", "f, line 3, column 1: key 'a' appears twice."),
        ("a:\n\tb: 1", "f, line 2, column 1: a tab; YAML indents with spaces only."),
        ("a: [1", "f, line 1, column 6: expected ',' or ']', but got '<stream end>'."),
        ("{1: 2}", "f, line 1, column 2: key '1' must be text."),
        ("[" * 3000, "f: nested too deeply."),
        ("!!python/name:os.system", "f, line 1, column 1: could not determine a constructor for"),
    ],
)
def test_what_is_refused_says_where_and_what_to_write(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(text, where="f")
    assert str(caught.value).startswith(message)


@given(st.floats(allow_nan=False, allow_infinity=False) | st.integers(-(10**12), 10**12))
def test_numbers_read_as_python_writes_them(number: float) -> None:
    assert parse(repr(number), where="f") == number


def test_files_that_hold_no_mapping(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    with pytest.raises(UserError, match="s.yaml: no such file"):
        read(file)
    file.write_text("# nothing\n")
    assert read(file) == {}
    file.write_text("- 1\n")
    with pytest.raises(UserError, match="holds a list; it must be a mapping"):
        read(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(UserError, match="cannot be read"):
        read(file)


def test_aliases_that_stand_for_too_much_are_refused_at_once() -> None:
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    began = time.perf_counter()
    with pytest.raises(UserError, match=r"f, line 1, column 1: its aliases stand for more than"):
        parse("\n".join(lines), where="f")
    assert time.perf_counter() - began < 1.0


def test_merges_that_stand_for_too_much_are_refused() -> None:
    lines = ["a0: &a0 {x: 1}"]
    lines += [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 10)}]}}" for n in range(1, 30)]
    with pytest.raises(UserError, match="its aliases stand for more than"):
        parse("\n".join(lines), where="f")


def test_a_few_aliases_are_welcome_and_circles_are_not() -> None:
    assert parse("a: &x [1, 2]\nb: *x", where="f") == {"a": [1, 2], "b": [1, 2]}
    with pytest.raises(UserError, match="recursive"):
        parse("a: &x [*x]", where="f")
