"""Pages of one HTML file: templates, figures and plotly's code inside, nothing fetched."""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jinja2
import plotly.graph_objects as go
from markupsafe import Markup, escape
from plotly.offline import get_plotlyjs

from ablate.analysis import formatting
from ablate.dashboards import theme


def render(template: str, figures: Mapping[str, go.Figure], **values: Any) -> str:
    """Return the page that `template` makes of `values`, with `figures` by their names."""
    text: str = (
        environment()
        .get_template(template)
        .render(
            **values,
            figures={name: figure_json(figure) for name, figure in figures.items()},
            light=theme.LIGHT,
            dark=theme.DARK,
            swaps=embedded(theme.dark_of_light()),
            plotly=packed_plotly() if figures else "",
        )
    )
    return text


def figure_json(figure: go.Figure) -> Markup:
    """Return a figure as JSON that may stand inside a script element."""
    return embedded(json.loads(figure.to_json()))


@cache
def packed_plotly() -> str:
    """Return plotly's code as base64 of gzip: half its size, and the page unpacks it."""
    packed = gzip.compress(get_plotlyjs().encode(), 9, mtime=0)
    return base64.b64encode(packed).decode()


def embedded(value: Any) -> Markup:
    """Return `value` as JSON in which no text can end the script element around it."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=True)
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)


def breakable(label: str) -> Markup:
    """Return `label` as HTML that a narrow column may break after a joint, not inside a word."""
    return Markup(re.sub(r"([=._/:,])", r"\1<wbr>", str(escape(label))))


def heading(text: str) -> str:
    """Return `text` with its first letter large; a symbol such as p stays as it is."""
    return text if len(text.partition(" ")[0]) == 1 else text[:1].upper() + text[1:]


@cache
def environment() -> jinja2.Environment:
    """Return the templates, which escape every text, with the filters that spell numbers."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    spelling = (
        *("count", "size", "duration", "number", "signed", "interval", "probability", "level"),
        *("several", "listed", "about"),
    )
    made.filters.update({name: getattr(formatting, name) for name in spelling})
    made.filters.update(breakable=breakable, heading=heading)
    return made
