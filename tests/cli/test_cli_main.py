"""The command's arguments and what it says about mistakes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jitbatch.cli import main
from jitbatch.cli._errors import CommandError, require


def error_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    try:
        code = main(arguments)
    except SystemExit as stop:
        code = int(stop.code or 0)
    return code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "required: command"),
        (["fly"], "invalid choice: 'fly'"),
        (["train"], "required: task"),
        (["train", "listops", "--epochs", "0"], "'0' is not a positive whole number"),
        (["train", "listops", "--epochs", "two"], "'two' is not a positive whole number"),
        (["train", "listops", "--learning-rate", "nan"], "'nan' is not a positive number"),
        (["train", "listops", "--weight-decay", "-1"], "'-1' is not a number, zero or more"),
        (["train", "listops", "--loop-samples", "-1"], "'-1' is not a whole number, zero or more"),
        (["train", "listops", "--seed", "-1"], "'-1' is not a whole number from 0 to 2**32 - 1"),
        (["train", "listops", "--seed", str(2**32)], "'4294967296' is not a whole number from 0 to 2**32 - 1"),
        (["train", "listops", "--hidden", "9" * 30], "is not a positive whole number below 2**31"),
        (["train", "listops", "--batch-size", str(2**31)], "is not a positive whole number below 2**31"),
        (["train", "listops", "--data", "x"], "unrecognized arguments"),
        (["train", "listops", "--executor", "fast"], "invalid choice: 'fast'"),
    ],
)
def test_wrong_arguments(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = error_of(capsys, *arguments)
    assert code == 2
    assert said in text


def test_what_can_be_mended_has_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, text = error_of(capsys, "train", "sst")
    assert code == 1
    assert text.startswith("jitbatch: error: where is the data? Give --data DIR")
    code, text = error_of(capsys, "train", "listops", "--resume")
    assert (code, text) == (
        1,
        "jitbatch: error: there is no run runs/listops-N to resume. Give its directory by --run\n",
    )
    code, text = error_of(capsys, "train", "listops", "--resume", "--run", "nowhere")
    assert code == 1
    assert "there is no run to resume in nowhere: it has no settings.json" in text
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    code, text = error_of(capsys, "train", "listops", "--run", "taken")
    assert code == 1
    assert "taken is not empty. Continue the run in it by --resume, or give another --run" in text


def test_a_missing_extra_is_named() -> None:
    with pytest.raises(CommandError, match=r"not_there\.part is not installed.*pip install -e '\.\[train\]'"):
        require(["json", "not_there.part"], "train")


def test_a_broken_dependency_of_an_extra_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_extra.py").write_text("import not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_there"):
        require(["broken_extra"], "train")


def test_the_package_and_the_help_need_only_jax_and_numpy() -> None:
    script = (
        "import sys, jitbatch.cli\n"
        "try:\n    jitbatch.cli.main(['train', 'sick', '--help'])\n"
        "except SystemExit:\n    pass\n"
        "print(*[m for m in ('flax', 'optax', 'orbax', 'rich', 'matplotlib') if m in sys.modules], file=sys.stderr)\n"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=os.environ)
    assert "--learning-rate X" in run.stdout
    assert run.stderr.strip() == ""
