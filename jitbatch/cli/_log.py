"""What a run leaves for people and programs: a record a line, a table of epochs, a picture of the curve."""

import csv
import json
from pathlib import Path
from typing import Any

from jitbatch.cli._errors import CommandError

RECORDS, TABLE, PICTURE = "log.jsonl", "epochs.csv", "curve.png"


class Log:
    """The records of a run, which are also lines of a file."""

    def __init__(self, directory: Path):
        self._directory = directory
        self.records: list[dict[str, Any]] = []

    def resume(self, step: int, epoch: int) -> None:
        """Take up the log of an earlier process, without what it did after the checkpoint that is resumed."""
        path = self._directory / RECORDS
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        for number, line in enumerate(lines, 1):
            try:
                record = json.loads(line)
            except ValueError:
                if number == len(lines):  # cut off where the process was killed
                    break
                raise CommandError(f"{path}, line {number}: not a JSON record: {line[:80]!r}") from None
            if record["step"] <= step and (record["kind"] == "step" or record["epoch"] <= epoch):
                self.records.append(record)
        text = "".join(json.dumps(record) + "\n" for record in self.records)
        replaced = path.with_suffix(".new")
        replaced.write_text(text, encoding="utf-8")
        replaced.replace(path)

    def add(self, record: dict[str, Any]) -> None:
        self.records.append(record)
        with open(self._directory / RECORDS, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def summarise(self) -> None:
        """Write the table and the picture of all epochs so far."""
        epochs = [record for record in self.records if record["kind"] == "epoch"]
        if epochs:
            write_table(epochs, self._directory / TABLE)
            draw_curve(epochs, self._directory / PICTURE)


def write_table(epochs: list[dict[str, Any]], path: Path) -> None:
    rows = [
        {
            "epoch": one["epoch"],
            "step": one["step"],
            "loss": one["loss"],
            **{f"dev {name}": value for name, value in one["dev"].items()},
            "samples/s": round(one["samples_per_second"], 1),
            **{f"{work} s": round(seconds, 3) for work, seconds in one["seconds"].items()},
        }
        for one in epochs
    ]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)


def draw_curve(epochs: list[dict[str, Any]], path: Path) -> None:
    """The loss of training and the metrics of the development data, by epoch."""
    from matplotlib.figure import Figure

    numbers = [one["epoch"] for one in epochs]
    metrics = list(epochs[0]["dev"])
    figure = Figure(figsize=(4 * (1 + len(metrics)), 3), layout="constrained")
    panels = figure.subplots(1, 1 + len(metrics))
    curves = [("training loss", [one["loss"] for one in epochs])]
    curves += [(f"dev {name}", [one["dev"][name] for one in epochs]) for name in metrics]
    for panel, (name, values) in zip(panels, curves, strict=True):
        panel.plot(numbers, values, marker="o", markersize=3)
        panel.set_xlabel("epoch")
        panel.set_title(name)
        panel.grid(alpha=0.3)
    figure.savefig(path, dpi=120)
