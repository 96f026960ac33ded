"""Train steps on a GPU or TPU, by a file that `on_device.py` wrote."""

from pathlib import Path

from parts.text import Content, about, digits, failures, milliseconds, table

CONTESTANTS = ("jitbatch", "static trip counts", "made for CPUs", "by hand")


def part(content: Content, _: Path) -> str:
    rows = [row for row in content["rows"] if "differences" in row]
    lines = [
        [
            f"{row['key']['case']}, minibatch {row['key']['minibatch']}",
            *(milliseconds(row.get(name)) for name in CONTESTANTS),
            digits(max(row["differences"].values())),
        ]
        for row in rows
    ]
    settings = content["settings"]
    parts = [
        f"## On {settings['device']} ({settings['platform']})",
        about(content),
        f"Milliseconds of the loss and the gradients of a minibatch, hidden {settings['hidden']}, plans made before. "
        "The last column is the largest difference from the CPU, relative to the largest value of an array.",
        table(["", *CONTESTANTS, "difference"], lines),
        failures(content["rows"]),
    ]
    return "\n\n".join(filter(None, parts))
