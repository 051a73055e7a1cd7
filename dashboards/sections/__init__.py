"""The sections of a report that appear only where the study has what they show."""
