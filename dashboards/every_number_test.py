"""Every printed number, recomputed by numpy and scipy from the rows of a real ledger.

The study has what goes wrong: a trial that diverges, one that fails, one that is missing, a cell
without any value, and so comparisons over unequal seeds. Nothing of `ablate.analysis` is used to
compute what is expected.
"""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from statsmodels.stats.multitest import multipletests

from ablate.analysis.frame import load_results
from ablate.dashboards.report import report_bytes
from ablate.sweep.ledger import Ledger

SEEDS = range(6)
TOKENS = (1000, 2000, 4000, 8000)
CELLS: dict[str, tuple[dict[str, Any], float, float]] = {
    "baseline": ({"memory": "mlp", "window": 16}, 2.0, 9e6),
    "memory=matrix": ({"memory": "matrix", "window": 16}, 2.3, 4e6),
    "window=4": ({"memory": "mlp", "window": 4}, 2.02, 8e6),
    "window=1": ({"memory": "mlp", "window": 1}, 1.93, 7e6),
    "window=0": ({"memory": "mlp", "window": 0}, 2.0, 6e6),
}
"""Label: levels, mean of the measure, FLOPs per token."""
STATES = {
    ("memory=matrix", 1): "diverged",
    ("window=4", 2): "failed",
    ("window=4", 5): "missing",
    **{("window=0", seed): "failed" for seed in SEEDS},
}
MINUS, PLUS, ARROW = "\N{MINUS SIGN}", "\N{PLUS-MINUS SIGN}", "\N{RIGHTWARDS ARROW}"


def plan() -> dict[str, Any]:
    cells = [
        {
            "id": f"{zlib.crc32(label.encode()):08x}",
            "label": label,
            "axes": axes,
            "changed": {a: [CELLS["baseline"][0][a], v] for a, v in axes.items()
                        if v != CELLS["baseline"][0][a]},
            "compared_with": None if label == "baseline" else f"{zlib.crc32(b'baseline'):08x}",
            "parameters": 100_000 + len(label),
            "state_bytes": 4096 * len(axes["memory"]),
            "flops_per_token": flops,
            "config": {"task": {"name": "language", "args": {}}, "train": {}},
        }
        for label, (axes, _, flops) in CELLS.items()
    ]  # fmt: skip
    return {"study": "numbers", "baseline": cells[0]["id"], "task": "language", "cells": cells,
            "measure": {"primary": "val/loss", "goal": "min"}, "seeds": list(SEEDS)}  # fmt: skip


def fill(ledger: Ledger) -> None:
    given = plan()
    ledger.save_plan(given)
    shared = np.random.default_rng(0).normal(0, 0.05, len(SEEDS))
    for cell, seed in itertools.product(given["cells"], SEEDS):
        label, trial = cell["label"], f"{cell['id']}-s{seed}"
        ledger.add_trials([{"id": trial, "cell": cell["id"], "seed": seed, "config": {}}])
        state = STATES.get((label, seed), "done")
        if state == "missing":
            continue
        attempt = ledger.begin(trial)
        ledger.record(trial, attempt, {"kind": "start", "host": "h", "pid": 1, "device": "cpu",
                                       "fingerprint": "f0", "info": {}})  # fmt: skip
        draw = np.random.default_rng([zlib.crc32(label.encode()), seed])
        final = CELLS[label][1] + shared[seed] + draw.normal(0, 0.03)
        for step, tokens in enumerate(TOKENS if state != "failed" else TOKENS[:1]):
            value = final * (tokens / TOKENS[-1]) ** -0.2
            if state == "diverged" and step == len(TOKENS) - 1:
                value = math.inf
            row = {"kind": "row", "step": step, "tokens": tokens, "seconds": step}
            ledger.record(trial, attempt, {**row, "metrics": {"val/loss": value}})
        summary = {"seconds": draw.uniform(5, 9), "tokens_per_second": draw.uniform(900, 1100),
                   "peak_memory_bytes": draw.uniform(1e8, 2e8),
                   **{f"val/accuracy@{n}": draw.uniform(0.2, 0.4) for n in (64, 128)},
                   "val/accuracy_stderr@64": 0.01}  # fmt: skip
        error = None if state == "done" else f"it {state}"
        ledger.record(trial, attempt, {"kind": "end", "state": state, "error": error,
                                       "traceback": None, "summary": summary})  # fmt: skip


class Raw:
    """What the ledger holds, read row by row, and plain statistics on it."""

    def __init__(self, ledger: Ledger) -> None:
        self.labels = {c["id"]: c["label"] for c in plan()["cells"]}
        self.records = {(self.labels[r.cell_id], r.seed): r for r in ledger.trials()}
        self.rows = {key: ledger.rows(r.trial_id) for key, r in self.records.items()}

    def state(self, label: str, seed: int) -> str:
        return self.records[label, seed].state

    def values(self, label: str) -> dict[int, float]:
        done = [s for s in SEEDS if self.state(label, s) == "done"]
        return {s: max(self.rows[label, s], key=lambda r: r.step).value for s in done}

    def differences(self, label: str) -> np.ndarray:
        own, base = self.values(label), self.values("baseline")
        return np.array([own[s] - base[s] for s in SEEDS if s in own and s in base])

    def mean_of(self, label: str, name: str) -> float | None:
        found = [self.records[label, s].summary[name] for s in self.values(label)]
        return float(np.mean(found)) if found else None


def t_interval(values: np.ndarray) -> tuple[float, float]:
    return stats.t.interval(0.95, len(values) - 1, values.mean(), stats.sem(values))  # type: ignore[no-any-return]


def sign_flip(differences: np.ndarray) -> float:
    signs = np.array(list(itertools.product([1, -1], repeat=len(differences))))
    return float((abs(signs @ differences) >= abs(differences.sum()) - 1e-12).mean())


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Raw, dict[str, str]]]:
    path: Path = tmp_path_factory.mktemp("numbers") / "ledger.sqlite"
    with Ledger.open(path) as ledger:
        fill(ledger)
        results = load_results(ledger)
        texts = {name: report_bytes(results, name).decode() for name in ("md", "csv", "html")}
        yield Raw(ledger), texts


COMPARED = ("memory=matrix", "window=4", "window=1")


def adjusted(raw: Raw) -> dict[str, float]:
    p = [sign_flip(raw.differences(label)) for label in COMPARED]
    return dict(zip(COMPARED, multipletests(p, method="holm")[1], strict=True))


def spelled(value: float, places: int, *, sign: bool = False) -> str:
    text = f"{value:+.{places}f}" if sign else f"{value:.{places}f}"
    return text.replace("-", MINUS)


def table(text: str, first: str) -> dict[str, list[str]]:
    """The Markdown table whose first heading is `first`, its rows by their first field."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first} |"))
    body = itertools.takewhile(lambda line: line.startswith("|"), lines[start + 2 :])
    fields = ([f.strip().replace("\\", "") for f in line.strip("|").split("|")] for line in body)
    return {row[0]: row[1:] for row in fields}


def test_the_csv_holds_every_number_unrounded(study: tuple[Raw, dict[str, str]]) -> None:
    raw, texts = study
    holm, rows = adjusted(raw), list(csv.DictReader(io.StringIO(texts["csv"])))
    assert [row["label"] for row in rows] == list(CELLS)
    for row in rows:
        label = row["label"]
        values, found = np.array(list(raw.values(label).values())), {}
        if len(values):
            low, high = t_interval(values)
            found |= {"mean": values.mean(), "low": low, "high": high}
            found |= {
                "seconds": raw.mean_of(label, "seconds"),
                "tokens_per_second": raw.mean_of(label, "tokens_per_second"),
                "peak_memory_bytes": raw.mean_of(label, "peak_memory_bytes"),
                "log_token_area": np.mean([area(raw, label, s) for s in raw.values(label)]),
            }
        if label in COMPARED:
            d = raw.differences(label)
            low, high = t_interval(d)
            found |= {"difference": d.mean(), "difference_low": low, "difference_high": high}
            found |= {"p": sign_flip(d), "p_holm": holm[label], "pairs": len(d)}
            found |= {"smallest_p": 2 / 2 ** len(d)}
            n = len(d) - 1
            small = math.gamma(n / 2) / (math.sqrt(n / 2) * math.gamma((n - 1) / 2))
            found["hedges_g"] = small * d.mean() / d.std(ddof=1)
        for name, value in found.items():
            assert float(row[name]) == pytest.approx(value, rel=1e-9), (label, name)
        for name in ("mean", "difference", "p", "seconds", "log_token_area"):
            assert (row[name] == "") == (name not in found), (label, name)
        assert int(row["n"]) == len(values)
        for state in ("done", "failed", "diverged", "missing"):
            assert int(row[state]) == sum(raw.state(label, s) == state for s in SEEDS)
        assert row["older_code"] == "0"


def area(raw: Raw, label: str, seed: int) -> float:
    rows = raw.rows[label, seed]
    x, y = np.log([r.tokens for r in rows]), np.array([r.value for r in rows])
    return float(np.trapezoid(y, x) / (x[-1] - x[0]))


def expected_row(raw: Raw, label: str, places: int) -> list[str]:
    """Mean, seeds and difference as they are to be printed."""
    values = np.array(list(raw.values(label).values()))
    if not len(values):
        return ["\N{EN DASH}", "0/6 (6 failed)", "\N{EN DASH}"]
    half = t_interval(values)[1] - values.mean()
    states = [raw.state(label, s) for s in SEEDS]
    others = [f"{states.count(s)} {s}" for s in ("diverged", "failed", "missing") if s in states]
    seeds = f"{len(values)}/6 ({', '.join(others)})" if others else "6"
    if label == "baseline":
        difference = "\N{EN DASH}"
    else:
        d = raw.differences(label)
        low, high = (spelled(end, places) for end in t_interval(d))
        difference = f"{spelled(d.mean(), places, sign=True)} [{low}, {high}]"
    return [f"{spelled(values.mean(), places)} {PLUS} {spelled(half, places)}", seeds, difference]


def test_the_ablation_table_and_the_page_print_the_same_numbers(
    study: tuple[Raw, dict[str, str]],
) -> None:
    raw, texts = study
    rows, holm = table(texts["md"], "cell"), adjusted(raw)
    places = len(rows["baseline"][1].partition(" ")[0].partition(".")[2])
    assert places == 3
    page = html_rows(texts["html"], "Ablation table")
    for label in CELLS:
        _, mean, seeds, difference, p, p_holm, *costs = rows[label]
        assert [mean, seeds, difference] == expected_row(raw, label, places)
        if label in COMPARED:
            wanted = (sign_flip(raw.differences(label)), holm[label])
            for printed, value in zip((p, p_holm), wanted, strict=True):
                assert float(printed) == pytest.approx(value, rel=0.006)
        seconds, rate = raw.mean_of(label, "seconds"), raw.mean_of(label, "tokens_per_second")
        assert costs[-1] == ("\N{EN DASH}" if seconds is None else f"{seconds:.1f} s")
        if rate is not None:
            number, _, suffix = costs[-2].partition(" ")
            exact = float(number) * (1000 if suffix == "k" else 1)
            assert exact == pytest.approx(rate, rel=0.005)
        assert costs[2] == f"{CELLS[label][2] / 1e6:.2f} M"
        assert page[label][0] == mean
        assert page[label][2] == difference
        assert page[label][3:] == [p, p_holm, *costs]


def test_other_measures_are_means_of_what_trials_scored(study: tuple[Raw, dict[str, str]]) -> None:
    raw, texts = study
    rows = table(texts["md"].partition("\naccuracy:\n")[2], "Cell")
    assert list(rows) == [label for label in CELLS if raw.values(label)]
    page = html_rows(texts["html"], "accuracy:")
    for label, (n, *printed) in rows.items():
        assert int(n) == len(raw.values(label))
        for name, text in zip(("val/accuracy@64", "val/accuracy@128"), printed, strict=True):
            scored = np.array([raw.records[label, s].summary[name] for s in raw.values(label)])
            half = t_interval(scored)[1] - scored.mean()
            assert text == f"{scored.mean():.3f} {PLUS} {half:.3f}"
        assert page[label] == [n, *printed]
    assert "stderr" not in texts["md"]


def test_the_sentences_say_what_the_rows_give(study: tuple[Raw, dict[str, str]]) -> None:
    raw, texts = study
    holm, text = adjusted(raw), texts["md"].replace("\\", "")
    for label in COMPARED:
        d = raw.differences(label)
        low, high = (spelled(end, 3) for end in t_interval(d))
        direction = "lower" if d.mean() < 0 else "higher"
        (said,) = re.findall(rf"^- ({re.escape(label)} .+)$", text, re.MULTILINE)
        assert f"{abs(d.mean()):.3f} loss {direction} than baseline" in said
        assert f"(95 % interval of the difference [{low}, {high}])" in said
        assert "better" not in said or holm[label] <= 0.05
        assert said.endswith("not established at this number of seeds.") == (holm[label] > 0.05)
        p, reachable, corrected = re.findall(r"(?:p = |: |adjusted p = )(\d\.\d+)", said)[:3]
        assert float(p) == pytest.approx(sign_flip(d), rel=0.006)
        assert float(reachable) == pytest.approx(2 / 2 ** len(d), rel=0.006)
        assert float(corrected) == pytest.approx(holm[label], rel=0.006)
    assert "- window=0 has no value: 0 of 6 seeds done, 6 failed." in text


def test_the_front_is_what_no_other_cell_beats(study: tuple[Raw, dict[str, str]]) -> None:
    raw, texts = study
    means = {c: float(np.mean(list(raw.values(c).values()))) for c in CELLS if raw.values(c)}
    costs: dict[str, Callable[[str], float]] = {
        "FLOPs per token": lambda label: CELLS[label][2],
        "State per sequence": lambda label: 4096.0 * len(CELLS[label][0]["memory"]),
        "Seconds per trial": lambda label: raw.mean_of(label, "seconds") or math.nan,
    }
    page = re.sub(r"<[^>]+>", "", texts["html"])
    for name, cost in costs.items():
        front = sorted(
            (
                label
                for label, mean in means.items()
                if all(means[o] > mean for o in means if o != label and cost(o) <= cost(label))
            ),
            key=cost,
        )
        listed = " and ".join([", ".join(front[:-1]), front[-1]] if len(front) > 1 else front)
        assert f"{name}: {listed}." in page


def test_failure_rates_are_counts_with_exact_intervals(study: tuple[Raw, dict[str, str]]) -> None:
    raw, texts = study
    rows = table(texts["md"], "Level")
    for axis, level in (("memory", "mlp"), ("memory", "matrix"), ("window", 4), ("window", 0)):
        cells = [label for label, (axes, _, _) in CELLS.items() if axes[axis] == level]
        states = [raw.state(label, s) for label in cells for s in SEEDS]
        ended = sum(s != "missing" for s in states)
        failed = [sum(s == kind for s in states) for kind in ("diverged", "failed")]
        k, n = sum(failed), ended
        low = 0.0 if k == 0 else stats.beta.ppf(0.025, k, n - k + 1)
        high = 1.0 if k == n else stats.beta.ppf(0.975, k + 1, n - k)
        rate = f"{100 * k / n:.0f} % [{100 * low:.0f}, {100 * high:.0f}]"
        assert rows[f"{axis}: {level}"] == [str(ended), *map(str, failed), rate]


def test_learning_is_timed_from_the_rows(study: tuple[Raw, dict[str, str]]) -> None:
    raw, texts = study
    rows = table(texts["md"].partition("## How soon it learns")[2], "Cell")
    half = TOKENS[-1] / 2
    for label in (c for c in CELLS if raw.values(c)):
        areas = np.array([area(raw, label, s) for s in raw.values(label)])
        halves = np.array(
            [
                next(r.value for r in raw.rows[label, s] if r.tokens == half)
                for s in raw.values(label)
            ]
        )
        for printed, values in zip(rows[label][:2], (areas, halves), strict=True):
            width = t_interval(values)[1] - values.mean()
            assert printed == f"{values.mean():.3f} {PLUS} {width:.3f}"


def test_the_effect_plot_draws_the_differences(study: tuple[Raw, dict[str, str]]) -> None:
    raw, texts = study
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', texts["html"])
    assert found is not None
    traces = json.loads(found[1])["effects"]["data"]
    circles = [t for t in traces if "error_x" in t and len(t["x"])]
    drawn = sorted(x for trace in circles for x in trace["x"])
    assert drawn == pytest.approx(sorted(raw.differences(label).mean() for label in COMPARED))


def html_rows(html: str, name: str) -> dict[str, list[str]]:
    """The texts of the fields of a table, without the small print, by the row's heading."""
    start = html.index(f'aria-label="{name}"')
    body = html[html.index("<tbody>", start) : html.index("</tbody>", start)]
    body = re.sub(r"<small.*?</small>|<i .*?</i>|<wbr>", "", body, flags=re.DOTALL)
    rows = {}
    for row in re.findall(r"<tr.*?</tr>", body, re.DOTALL):
        fields = re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL)
        texts = [re.sub(r"<[^>]+>", "", field).strip() for field in fields]
        rows[texts[0]] = texts[1:]
    return rows
