"""What can be trained: data is read and numbered, models fit it, mistakes in it are told."""

import codecs
import importlib.util
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from jitbatch.cli import _tasks_trees, main
from jitbatch.cli._baselines import bag_of_items, bag_of_symbols, majority
from jitbatch.cli._errors import CommandError
from jitbatch.cli._settings import Settings, new_settings
from jitbatch.cli._splits import CALLS
from jitbatch.cli._tasks import make_task
from jitbatch.cli._trainer import Step, Trainer
from jitbatch.data import make_listops
from jitbatch.data.ast_functions import split_of

SST = "(3 (2 good) (2 (2 old) (2 film)))\n(1 (2 bad) (2 film))\n(3 (3 good) (2 (2 new) (2 film)))\n"
SICK = {
    "a.toks": "a dog runs\na cat sleeps\n",
    "a.parents": "2 3 0\n2 3 0\n",
    "b.toks": "a cat runs\nno dog sleeps now\n",
    "b.parents": "2 3 0\n2 3 0 3\n",
    "sim.txt": "3.5\n1.2\n",
}
CONLLU = """\
1\tdogs\t_\tNOUN\t_\t_\t2\tnsubj\t_\t_
2\trun\t_\tVERB\t_\t_\t0\troot\t_\t_

1\tcats\t_\tNOUN\t_\t_\t2\tnsubj\t_\t_
2\trun\t_\tVERB\t_\t_\t0\troot\t_\t_
3\tnow\t_\tADV\t_\t_\t2\tadvmod\t_\t_

"""


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, str]:
    """A folder of data for each task."""
    for split in ("train", "dev", "test"):
        (tmp_path / "sick" / split).mkdir(parents=True)
        for name, text in SICK.items():
            (tmp_path / "sick" / split / name).write_text(text)
        for task, suffix, text in (("sst", ".txt", SST), ("tagger", ".conllu", CONLLU), ("parser", ".conllu", CONLLU)):
            (tmp_path / task).mkdir(exist_ok=True)
            (tmp_path / task / f"{split}{suffix}").write_text(text)
    return {task: str(tmp_path / task) for task in ("sick", "sst", "tagger", "parser")}


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """A folder with two Python files for each split."""
    folder = tmp_path / "modules"
    folder.mkdir()
    missing = ["train", "train", "dev", "dev", "test", "test"]
    for number in range(1000):
        name = f"module_{number}.py"
        if (split := split_of(name)) in missing:
            missing.remove(split)
            source = (
                f"def get_size(self): return self.size + {number}\ndef set_size(self, size): self.size = {number}\n"
            )
            (folder / name).write_text(source)
    return folder


def small(task: str, **others: Any) -> Settings:
    return new_settings({"task": task, "hidden": 4, "embedding": 3, **others})


@pytest.mark.parametrize(("task", "samples"), [("sick", 2), ("sst", 3), ("tagger", 2), ("parser", 2)])
def test_a_task_has_data_a_model_and_a_loss_of_one_sample(task: str, samples: int, folders: dict[str, str]) -> None:
    made = make_task(small(task, data=folders[task]))
    assert len(made.train) == len(made.dev) == len(made.test) == samples
    assert np.isfinite(made.loss(made.model, made.train[0]))
    assert len(make_task(small(task, data=folders[task], limit=1)).train) == 1


def test_words_that_occur_once_are_unknown(folders: dict[str, str]) -> None:
    sample = make_task(small("sst", data=folders["sst"])).train[0]
    assert sample.tree == (1, (0, 2))  # good, film: twice; old: once


def test_metrics_of_right_answers(folders: dict[str, str]) -> None:
    sick = make_task(small("sick", data=folders["sick"]))
    assert sick.metrics([3.5, 1.2], sick.dev) == {
        "pearson": pytest.approx(1),
        "spearman": pytest.approx(1),
        "mse": pytest.approx(0, abs=1e-9),
    }
    sst = make_task(small("sst", data=folders["sst"]))
    assert sst.metrics([3, 1, 0], sst.dev) == {"accuracy": pytest.approx(2 / 3)}
    tagger = make_task(small("tagger", data=folders["tagger"]))
    assert tagger.metrics([sample.tags for sample in tagger.dev], tagger.dev) == {"accuracy": 1.0}
    parser = make_task(small("parser", data=folders["parser"]))
    right = [sample.actions.tolist() for sample in parser.dev]
    assert parser.metrics(right, parser.dev) == {"uas": 1.0, "las": 1.0}
    assert parser.metrics([right[0], [0, 0, 2, 0, 2]], parser.dev)["uas"] < 1
    *all_but_last, last = right[1]
    other_relation = [*all_but_last, last + 2]
    assert parser.metrics([right[0], other_relation], parser.dev) == {"uas": 1.0, "las": pytest.approx(4 / 5)}


def test_baselines_see_words_and_tags_but_no_structure(folders: dict[str, str]) -> None:
    tagger, parser = (make_task(small(task, data=folders[task])) for task in ("tagger", "parser"))
    assert {name: found() for name, found in tagger.baselines.items()} == {
        "most frequent tag of each word": 1.0,
        "majority class": pytest.approx(2 / 5),
    }
    assert {name: found() for name, found in parser.baselines.items()} == {
        "most frequent distance of the head by tag": 1.0,
        "most frequent distance of the head": pytest.approx(2 / 5),
    }


def test_a_bag_of_symbols_learns_what_needs_no_order() -> None:
    train, test = make_listops(0, [2000, 300], depth=1)
    learnt = bag_of_symbols(train, test, seed=0, steps=200)
    by_chance = majority([one.value for one in train], [one.value for one in test])
    assert learnt > 0.3 > by_chance + 0.1
    assert learnt == bag_of_symbols(train, test, seed=0, steps=200)


def test_functions_are_told_apart_by_the_first_word_of_their_name(modules: Path) -> None:
    task = make_task(small("ast", data=str(modules)))
    assert len(task.train) == len(task.dev) == len(task.test) == 4
    assert "4 / 4 / 4 functions, 102 nodes" in task.description
    assert "which of 2 words" in task.description
    assert np.isfinite(task.loss(task.model, task.train[0]))
    assert task.metrics([1, 2, 1, 1], task.dev) == {"accuracy": 0.75}
    assert len(make_task(small("ast", data=str(modules), names=1)).train) == 2
    assert {name: found() for name, found in task.baselines.items()} == {
        "bag of node types and words": 1.0,
        "bag of node types": 1.0,
        "majority class": 0.5,
    }


def test_a_split_without_functions(modules: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for path in modules.iterdir():
        if split_of(path.name) == "dev":
            path.unlink()
    assert said("ast", str(modules), tmp_path, capsys) == (
        "there are no functions for the dev data, of 8 in all. Files are assigned by their paths: give --data DIR with "
        "more of them"
    )
    found = said("ast", str(tmp_path / "nowhere"), tmp_path, capsys)
    assert found.startswith(f"{tmp_path / 'nowhere'} cannot be read: Not a directory")


def test_a_linear_model_of_counts_sees_no_order() -> None:
    rng = np.random.default_rng(0)
    bags = [rng.integers(5, size=6).tolist() for _ in range(600)]
    counted = [(bag, int(bag.count(3) > 1)) for bag in bags]
    ordered = [(bag, int(bag[0] > bag[-1])) for bag in bags]
    for samples, least, most in ((counted, 0.9, 1.0), (ordered, 0.3, 0.7)):
        assert least <= bag_of_items(samples[:400], samples[400:500], samples[500:], seed=0, steps=200) <= most


def test_vectors_from_a_file_are_the_embedding(folders: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "vectors.txt"
    file.write_text("film 1.0 2.0\nother 3.0 4.0\n")
    model: Any = make_task(small("sst", data=folders["sst"], vectors=str(file))).model
    assert model.encoder.embed.embedding[2].tolist() == [1.0, 2.0]
    with pytest.raises(CommandError, match=r"vectors cannot be read: .*nowhere"):
        make_task(small("sst", data=folders["sst"], vectors="nowhere"))


def test_missing_and_malformed_data_is_told(
    folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--run", str(tmp_path / "run")]
    assert main(["train", "sst", *where]) == 1
    assert "where is the data? Give --data DIR" in capsys.readouterr().err
    assert main(["train", "sst", "--data", str(tmp_path), *where]) == 1
    assert f"{tmp_path / 'train.txt'} is missing" in capsys.readouterr().err
    (Path(folders["sst"]) / "dev.txt").write_text("(3 (2 fine) (2 film))\n(3 (2 not\n")
    assert main(["train", "sst", "--data", folders["sst"], *where]) == 1
    assert "dev.txt:2" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


DEEP = "(2 " * 3000 + "(2 film)" + " (2 film))" * 3000 + "\n"
CHAIN = {
    "a.toks": "w " * 3000,
    "a.parents": " ".join(map(str, range(3000))),
    "b.toks": "w",
    "b.parents": "0",
    "sim.txt": "3",
}
NOT_PROJECTIVE = "".join(f"{word}\tw\t_\tX\t_\t_\t{head}\tx\t_\t_\n" for word, head in enumerate([3, 0, 2, 1], 1))


def rewrite(folder: str, split: str, text: str | dict[str, str]) -> None:
    for path in Path(folder).glob(f"{split}*"):
        for file in path.iterdir() if path.is_dir() else [path]:
            file.write_text(text[file.name] if isinstance(text, dict) else text)


def said(task: str, folder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    """The one line that the command ends with; no directory is made for such a run."""
    assert main(["train", task, "--data", folder, "--run", str(tmp_path / "run"), *options]) == 1
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    assert not (tmp_path / "run").exists()
    return text.removeprefix("jitbatch: error: ").strip()


@pytest.mark.parametrize("task", ["sick", "sst", "tagger", "parser"])
@pytest.mark.parametrize("split", ["train", "dev", "test"])
def test_a_split_without_samples(
    task: str, split: str, folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(folders[task], split, "")
    path = next(Path(folders[task]).glob(f"{split}*"))
    expected = f"{path} holds no samples. What --data DIR must hold: jitbatch train {task} --help"
    assert said(task, folders[task], tmp_path, capsys) == expected


@pytest.mark.parametrize("task", ["sick", "sst", "tagger", "parser"])
def test_training_data_in_which_each_word_occurs_once(
    task: str, folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    once = {
        "sick": {name: text.split("\n")[0] for name, text in SICK.items()} | {"b.toks": "some fish swim"},
        "sst": "(3 (2 good) (2 film))",
        "tagger": CONLLU.partition("\n\n")[0] + "\n",
        "parser": CONLLU.partition("\n\n")[0] + "\n",
    }
    rewrite(folders[task], "train", once[task])
    assert said(task, folders[task], tmp_path, capsys) == (
        "each word of the training data occurs once, so that all are the unknown word. Give more training data"
    )


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(("task", "text", "depth"), [("sst", DEEP + SST, "3,001"), ("sick", CHAIN, "3,000")])
def test_a_tree_that_is_too_deep(
    task: str, text: Any, depth: str, split: str, folders: dict[str, str], tmp_path: Path, capsys: Any
) -> None:
    rewrite(folders[task], split, text)
    path = next(Path(folders[task]).glob(f"{split}*"))
    found = said(task, folders[task], tmp_path, capsys)
    assert found.startswith(f"{path}: the tree of sample 1 has {depth} levels, and models can read ")
    assert found.endswith("nested calls. Leave the sample out")


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["batch", "loop"])
@pytest.mark.parametrize("task", ["sick", "sst"])
def test_trees_as_deep_as_allowed_are_trained_on(
    task: str, executor: str, folders: dict[str, str], tmp_path: Path
) -> None:
    most = sys.getrecursionlimit() // CALLS
    texts: dict[str, Any] = {
        "sst": "(2 " * (most - 1) + "(2 film)" + " (2 film))" * (most - 1) + "\n",
        "sick": CHAIN | {"a.toks": "w " * most, "a.parents": " ".join(map(str, range(most)))},
    }
    for split in ("train", "dev", "test"):
        rewrite(folders[task], split, texts[task])
    options = ["--hidden", "2", "--embedding", "2", "--epochs", "1", "--executor", executor]
    assert main(["train", task, "--data", folders[task], "--run", str(tmp_path / "run"), *options]) == 0


def test_expressions_that_are_nested_too_deeply(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "listops", "--depth", "100000", "--train-size", "50"]) == 1
    text = capsys.readouterr().err
    assert "a sample is nested too deeply for Python's limit of" in text
    assert "give a smaller --depth" in text


def test_more_expressions_than_there_are(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def too_few(*args: Any) -> None:
        raise ValueError("there are only 3")

    monkeypatch.setattr(_tasks_trees, "make_listops", too_few)
    assert main(["train", "listops"]) == 1
    expected = "jitbatch: error: there are only 3. Give a larger --depth or a smaller --train-size\n"
    assert capsys.readouterr().err == expected


def test_only_sentences_that_are_not_projective(
    folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewrite(folders["parser"], "dev", NOT_PROJECTIVE)
    assert said("parser", folders["parser"], tmp_path, capsys) == (
        "no sentence of the dev data is projective, as the parser needs it. Add some"
    )


@pytest.mark.parametrize(("task", "name"), [("sst", "dev.txt"), ("tagger", "train.conllu"), ("sick", "test/b.toks")])
def test_a_directory_in_place_of_a_file(
    task: str, name: str, folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(folders[task]) / name
    path.unlink()
    path.mkdir()
    found = said(task, folders[task], tmp_path, capsys)
    assert f"cannot be read: Is a directory ({path}). What --data DIR must hold: jitbatch train {task}" in found
    found = said("sst", folders["sst"], tmp_path, capsys, "--vectors", str(path))
    assert "Is a directory" in found


def test_a_missing_file_of_a_folder(
    folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(folders["sick"]) / "dev" / "sim.txt"
    path.unlink()
    assert f"No such file or directory ({path})" in said("sick", folders["sick"], tmp_path, capsys)


def test_sizes_that_do_not_fit_into_memory(
    folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "listops", "--hidden", "100000000", "--run", str(tmp_path / "run")]) == 1
    found = capsys.readouterr().err
    assert (
        "training a model with --hidden 100000000 takes at least 1,192,092,937.2 GiB of memory, and there are " in found
    )
    assert found.endswith("GiB. Give smaller sizes\n")
    assert not (tmp_path / "run").exists()
    found = said("sst", folders["sst"], tmp_path, capsys, "--embedding", "2147483647")
    assert "--hidden 128 and --embedding 2147483647 takes at least" in found


@pytest.mark.parametrize("error", [MemoryError("Unable to allocate 7 TiB"), "RESOURCE_EXHAUSTED: 7 TiB"])
def test_memory_that_is_missing_later(error: Any, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(*args: Any) -> None:
        raise jax.errors.JaxRuntimeError(error) if isinstance(error, str) else error

    monkeypatch.setattr(_tasks_trees, "make_listops", fail)
    assert main(["train", "listops"]) == 1
    text = capsys.readouterr().err
    assert "there is not enough memory: " in text
    assert "7 TiB. Begin a new run with a smaller --hidden or --batch-size\n" in text


def test_vectors_that_are_not_finite(
    folders: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "vectors.txt"
    file.write_text("good 1.0 2.0\nfilm 1.0 nan\n")
    assert said("sst", folders["sst"], tmp_path, capsys, "--vectors", str(file)) == (
        f"the vectors cannot be read: {file}:2: 'nan' is not a finite number of type float32. "
        "Mend the file, or give another by --vectors"
    )


@pytest.mark.parametrize("task", ["sick", "sst", "tagger", "parser"])
def test_byte_order_marks_are_no_words(task: str, folders: dict[str, str]) -> None:
    plain = make_task(small(task, data=folders[task]))
    for file in Path(folders[task]).rglob("*.*"):
        file.write_bytes(codecs.BOM_UTF8 + file.read_bytes())
    marked = make_task(small(task, data=folders[task]))
    assert repr(marked.train) == repr(plain.train)
    assert marked.description == plain.description


@pytest.mark.slow
@pytest.mark.parametrize("task", ["sick", "sst", "tagger", "parser"])
def test_the_command_trains_each_task(task: str, folders: dict[str, str], tmp_path: Path) -> None:
    options = ["--hidden", "4", "--embedding", "3", "--epochs", "2", "--batch-size", "2"]
    assert main(["train", task, "--data", folders[task], "--run", str(tmp_path / "run"), *options]) == 0


@pytest.mark.slow
def test_the_command_trains_on_functions(modules: Path, tmp_path: Path) -> None:
    options = ["--hidden", "4", "--embedding", "3", "--epochs", "2", "--batch-size", "2"]
    assert main(["train", "ast", "--data", str(modules), "--run", str(tmp_path / "run"), *options]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("task", ["tagger", "parser"])
def test_a_toy_language_is_learnt(task: str, tmp_path: Path) -> None:
    sizes = ["--hidden", "16", "--embedding", "8", "--epochs", "8", "--batch-size", "10", "--limit", "200"]
    assert main(["train", task, "--run", str(tmp_path / "run"), "--learning-rate", "2e-2", *sizes]) == 0
    final = json.loads((tmp_path / "run" / "log.jsonl").read_text().splitlines()[-1])
    achieved, *_ = final["test"].values()
    assert achieved > max(final["baselines"].values()) + 0.05


@pytest.mark.skipif(importlib.util.find_spec("ase") is None, reason="the G2 set needs the package ase")
def test_molecules_are_trained_on_forces() -> None:
    settings = small("molecules", forces=1000.0, limit=8, batch_size=8, epochs=2, learning_rate=0.1)
    with_forces, without = (Trainer(make_task(one), one) for one in (settings, replace(settings, forces=0.0)))
    losses = [[step.loss for step in trainer.run() if isinstance(step, Step)] for trainer in (with_forces, without)]
    assert losses[0][0] == losses[1][0]  # the readouts are zero at first, and so are forces
    assert losses[0][1] > losses[1][1] + 1
    with pytest.raises(CommandError, match="leave --executor loop, or --forces, out"):
        make_task(small("molecules", forces=1.0, executor="loop"))


@pytest.mark.skipif(importlib.util.find_spec("ase") is None, reason="the G2 set needs the package ase")
def test_molecules_begin_at_what_composition_tells() -> None:
    task = make_task(small("molecules"))
    assert (len(task.train), len(task.dev), len(task.test)) == (96, 22, 30)
    sample = task.test[0]
    by_element = np.asarray(task.model.reference.embedding)[:, 0]  # type: ignore[attr-defined]
    assert task.model.energy(sample) == pytest.approx(by_element[sample.species].sum(), rel=1e-5)  # type: ignore[attr-defined]
    composed = [by_element[one.species].sum() for one in task.test]
    figures = {name: found() for name, found in task.baselines.items()}
    assert figures["composition: an energy for each element"] == pytest.approx(
        task.metrics(composed, task.test)["negative mae (eV)"], rel=1e-4
    )
    assert figures["the mean energy"] < figures["composition: an energy for each element"]
