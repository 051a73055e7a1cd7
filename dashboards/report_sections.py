"""All sections of a report that depend on what the study has, by name."""

from __future__ import annotations

from ablate.analysis.frame import StudyResults
from ablate.dashboards.section import Section
from ablate.dashboards.sections.attribution import attribution_section
from ablate.dashboards.sections.claims import claims_section
from ablate.dashboards.sections.failure_rates import failure_rates_section
from ablate.dashboards.sections.learnability import learnability_section
from ablate.dashboards.sections.scaling import scaling_section


def report_sections(results: StudyResults, decimals: int) -> dict[str, Section]:
    """Return the sections that apply to the study, in the order of the page."""
    found = (
        claims_section(results, decimals),
        attribution_section(results, decimals),
        learnability_section(results, decimals),
        scaling_section(results, decimals),
        failure_rates_section(results),
    )
    return {section.name: section for section in found if section is not None}
