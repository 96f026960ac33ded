"""Programs compiled ahead of time for accelerators that this machine does not have (see `aot.py`)."""
