"""The memory's recurrence: the token loop that defines it, and the chunked form that runs it."""
