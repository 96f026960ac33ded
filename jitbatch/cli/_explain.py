"""`jitbatch explain`: the report of a batch, from the command line."""

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

from jitbatch.data.files import lines_of
from jitbatch.util.errors import ArgumentError

HELP = "tell what was batched with what, what stayed small, and why"

_EXAMPLES = """examples:
  jitbatch explain model:logits --params model:params --data model:trees
  jitbatch explain model:logits --params model:params --data trees.jsonl --html report.html --measure
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("function", metavar="module:function", help="the decorated function, or a decorated method")
    parser.add_argument(
        "--params", metavar="module:name", action="append", default=[],
        help="a shared argument, or a function without arguments that makes it; once for each shared argument",
    )  # fmt: skip
    parser.add_argument(
        "--data", metavar="SAMPLES", required=True,
        help="module:name of a list of samples, or of a function that makes it; or a .json file with a list, or a "
        ".jsonl file with a sample in each line, in which lists are tuples",
    )  # fmt: skip
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N samples")
    parser.add_argument("--measure", action="store_true", help="run the batch, and measure instead of estimating")
    parser.add_argument("--html", metavar="FILE", help="write a page with drawings to FILE")


def run(arguments: argparse.Namespace) -> int:
    """Print the report."""
    if "" not in sys.path:
        sys.path.insert(0, "")  # modules in the current folder, as `python -m` has it
    function = load(arguments.function)
    if not hasattr(function, "explain"):
        raise ArgumentError(
            f"{arguments.function} is a {type(function).__name__}, not a function decorated with @jitbatch"
        )
    samples = list(read_samples(arguments.data))[: arguments.limit]
    report = function.explain(*(_made(load(name)) for name in arguments.params), samples, measure=arguments.measure)
    print(report)
    if arguments.html:
        report.to_html(arguments.html)
        print(f"\nwritten to {arguments.html}")
    return 0


def load(path: str) -> Any:
    """The object `module:name`. The name may have dots."""
    module, _, name = path.partition(":")
    if not module or not name:
        raise ArgumentError(f"{path!r} is not of the form module:name")
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise  # a module that this one needs
        raise ArgumentError(
            f"there is no module {module!r} (of {path!r}) in {Path.cwd()} or on Python's path"
        ) from None
    for part in name.split("."):
        if not hasattr(found, part):
            known = ", ".join(sorted(name for name in vars(found) if not name.startswith("_"))[:20])
            raise ArgumentError(f"{path!r}: {module} has no {part!r}; it has {known}")
        found = getattr(found, part)
    return found


def read_samples(data: str) -> Any:
    """Samples of a file, or of a module."""
    if data.endswith((".json", ".jsonl")):
        file = Path(data)
        if not file.is_file():
            raise ArgumentError(f"there is no file {data!r}")
        lines = lines_of(file)
        if data.endswith(".jsonl"):
            return [_sample(line, f"{data}:{line_number}") for line_number, line in enumerate(lines, 1) if line.strip()]
        samples = _sample("\n".join(lines), data)
        if not isinstance(samples, tuple):
            raise ArgumentError(f"{data} holds a {type(samples).__name__}, not a list of samples")
        return samples
    return _made(load(data))


def _made(value: Any) -> Any:
    """A value, or the result of a function without arguments. A callable module of parameters is a value."""
    return value() if callable(value) and hasattr(value, "__code__") else value


def _sample(text: str, where: str) -> Any:
    try:
        return _with_tuples(json.loads(text))
    except json.JSONDecodeError as error:
        raise ArgumentError(f"{where} is not JSON: {error}") from None


def _with_tuples(value: Any) -> Any:
    """Lists as tuples, because trees are tuples."""
    if isinstance(value, list):
        return tuple(map(_with_tuples, value))
    if isinstance(value, dict):
        return {name: _with_tuples(item) for name, item in value.items()}
    return value
