"""What is asked: one folder per task, its studies beside it."""
