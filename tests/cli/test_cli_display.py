"""What a person sees of a training."""

import io

from rich.console import Console

from jitbatch.cli._display import Display
from jitbatch.cli._trainer import Epoch, Step

SECONDS = {"analysis": 1.0, "compile": 0.0, "execution": 3.0}
STEP = Step(epoch=2, step=7, samples=20, loss=0.5, mean_loss=0.75, seconds=SECONDS)
EPOCH = Epoch(2, 8, 0.7, {"accuracy": 0.9}, True, 10.0, SECONDS, compilations=1)


def shown(terminal: bool) -> str:
    console = Console(file=io.StringIO(), force_terminal=terminal, width=160, highlight=False)
    with Display(epochs=5, samples=40, console=console) as display:
        display.say("[MAX 1 2] is not markup")
        display.header()
        for show in (display.compiling, lambda: display.step(STEP)):
            show()
            if terminal:
                display._progress.refresh()
        display.epoch(EPOCH)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_file_gets_a_line_for_each_epoch() -> None:
    lines = shown(terminal=False).splitlines()
    assert lines[0] == "[MAX 1 2] is not markup"
    assert " ".join(lines[2].split()) == "2 10 0.7000 1.0 s / 0.0 s / 3.0 s accuracy 0.9000 best"
    assert len(lines) == 3


def test_a_terminal_also_gets_a_live_line_and_its_cursor_back() -> None:
    text = shown(terminal=True)
    assert "compiling the first step" in text
    assert "epoch 2/5" in text
    assert "5 samples/s  loss 0.7500  analysis 25%, compile 0%, execution 75%" in text
    assert text.rindex("\x1b[?25h") > text.rindex("\x1b[?25l")
