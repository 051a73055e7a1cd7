"""What every sequence model must do, whatever its components: checks that explain themselves."""
