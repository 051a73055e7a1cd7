"""All sections of a report that depend on what the study has, by name."""

from __future__ import annotations

from ablate.analysis.comparisons import Comparisons
from ablate.analysis.formatting import decimals_for
from ablate.analysis.frame import StudyResults
from ablate.analysis.published import Published
from ablate.dashboards.section import Section
from ablate.dashboards.sections.attribution import attribution_section
from ablate.dashboards.sections.claims import claims_section
from ablate.dashboards.sections.failure_rates import failure_rates_section
from ablate.dashboards.sections.learnability import learnability_section
from ablate.dashboards.sections.measures import measures_section
from ablate.dashboards.sections.paper import paper_section
from ablate.dashboards.sections.scaling import scaling_section
from ablate.dashboards.sections.search import search_section
from ablate.dashboards.sections.tuned import tuned_section

SECTIONS = (
    *("claims", "search", "tuned", "paper", "measures", "attribution", "learnability", "scaling"),
    "failure_rates",
)
"""The names of all sections that a study may have, in the order of the page."""


def report_sections(
    results: StudyResults, comparisons: Comparisons, paper: Published | None = None
) -> dict[str, Section]:
    """Return the sections that apply to the study by name, in the order of the page."""
    decimals = decimals_for(comparisons)
    found = (
        claims_section(results, decimals),
        search_section(results),
        tuned_section(results),
        None if paper is None else paper_section(results, comparisons, paper),
        measures_section(results),
        attribution_section(results, decimals),
        learnability_section(results, decimals),
        scaling_section(results, decimals),
        failure_rates_section(results),
    )
    return {section.name: section for section in found if section is not None}
