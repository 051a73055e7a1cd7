"""Run the command line as ``python -m ablate``."""

from ablate.cli import main

main()
