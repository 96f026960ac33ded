"""The same models in other frameworks, each a process of its own (see `run.py`)."""
