"""LaTeX by booktabs: escaping of any text, and a table that compiles with plain pdfLaTeX."""

from __future__ import annotations

from collections.abc import Sequence

_SPECIAL = {
    "\\": "\\textbackslash{}",
    **{letter: f"\\{letter}" for letter in "{}$&%#_"},
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    "\N{MINUS SIGN}": "$-$",
    "\N{PLUS-MINUS SIGN}": "$\\pm$",
    "\N{RIGHTWARDS ARROW}": "$\\to$",
    "\N{EN DASH}": "--",
    "\N{INFINITY}": "$\\infty$",
}
_GREEK = {
    "α": "alpha",
    "β": "beta",
    "γ": "gamma",
    "δ": "delta",
    "ε": "epsilon",
    "η": "eta",
    "θ": "theta",
    "κ": "kappa",
    "λ": "lambda",
    "μ": "mu",
    "ν": "nu",
    "π": "pi",
    "ρ": "rho",
    "σ": "sigma",
    "τ": "tau",
    "φ": "phi",
    "ψ": "psi",
    "ω": "omega",
    "Δ": "Delta",
    "Σ": "Sigma",
    "Ω": "Omega",
}


def escape(text: str) -> str:
    """Escape `text`; a letter for which plain pdfLaTeX has no glyph is written as its number."""
    return "".join(_letter(letter) for letter in text)


def tabular(
    caption: str, alignment: str, heading: Sequence[str], rows: Sequence[Sequence[str]]
) -> str:
    """Return a table environment of plain texts, each escaped here.

    Args:
        caption: the caption.
        alignment: one of ``l``, ``r``, ``c`` for each column.
        heading: one text for each column.
        rows: one text for each column of each row.
    """
    lines = [
        "% \\usepackage{booktabs}",
        "\\begin{table}",
        "\\centering\\small",
        f"\\caption{{{escape(caption)}}}",
        f"\\begin{{tabular}}{{{alignment}}}",
        "\\toprule",
        _line(heading),
        "\\midrule",
        *map(_line, rows),
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _line(texts: Sequence[str]) -> str:
    # A bracket or star at the start of a row would be read as an argument of the row before.
    first = "{}" if texts and texts[0][:1] in ("[", "*") else ""
    return first + " & ".join(map(escape, texts)) + r" \\"


def _letter(letter: str) -> str:
    if letter in _SPECIAL:
        return _SPECIAL[letter]
    if letter in _GREEK:
        return f"\\ensuremath{{\\{_GREEK[letter]}}}"
    if letter.isascii():
        return letter if letter.isprintable() else " "
    if "\N{LATIN CAPITAL LETTER A WITH GRAVE}" <= letter <= "\N{LATIN SMALL LETTER Z WITH CARON}":
        return letter
    return f"[U+{ord(letter):04X}]"
