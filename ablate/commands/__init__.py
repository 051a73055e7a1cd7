"""What each command does; `ablate.cli` only says what can be typed."""
