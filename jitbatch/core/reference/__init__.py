"""The core in plain Python: the reference for tests of the compiled core, and its replacement where it is missing."""
