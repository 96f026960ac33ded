"""Training, development and test data: read from a folder, checked, and the frequent words of the training data."""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jitbatch.cli._errors import CommandError
from jitbatch.cli._files import file_errors
from jitbatch.cli._settings import Settings
from jitbatch.data import Dependency, Parsed, Vocabulary, make_toy_language, read_conllu
from jitbatch.data.ast_functions import (
    Function,
    FunctionVocabularies,
    nodes,
    number_functions,
    read_functions,
    split_of,
)

SPLITS = ("train", "dev", "test")

CALLS = 5
"""How many nested calls models and readers make at most for a level of a tree, others included."""


def read_parsed(settings: Settings) -> tuple[Vocabulary, list[list[Parsed]]]:
    """The frequent words of the training data, and three splits in CoNLL-U, or without a folder a toy language."""
    if settings.data is None:
        splits = make_toy_language(settings.seed, [2000, 300, 500])
    else:
        splits = [read_split(settings, read_conllu, path) for path in paths_of(settings, ".conllu")]
    words = frequent(Counter(word for sentence in splits[0] for word in sentence.words))
    return words, [limited(split, settings) for split in splits]


def number_splits(
    splits: Sequence[list[Any]], numbered: Callable[[list[Any]], Any], vocabularies: Sequence[Vocabulary]
) -> list[Any]:
    """Samples as numbers. Words that the training data lacks are unknown in the other splits."""
    train, *others = splits
    first = numbered(train)
    for vocabulary in vocabularies:
        vocabulary.freeze()
    return [first, *map(numbered, others)]


def read_splits(
    settings: Settings,
    suffix: str,
    read: Callable[[Path, Vocabulary], list[Any]],
    numbers_of: Callable[[Any], Iterable[int]],
    trees_of: Callable[[Any], Sequence[Any]],
) -> tuple[Vocabulary, list[list[Any]]]:
    """The frequent words of the training data, and the three splits in a folder."""
    paths = paths_of(settings, suffix)
    seen = Vocabulary()
    samples = read_split(settings, lambda path: read(path, seen), paths[0])
    check_depth(samples, paths[0], trees_of)
    counts = Counter(word_id for sample in samples for word_id in numbers_of(sample))
    words = frequent({seen.word(word_id): count for word_id, count in counts.items()})
    splits = [read_split(settings, lambda path: read(path, words), path) for path in paths]
    for path, split in zip(paths, splits, strict=True):
        check_depth(split, path, trees_of)
    return words, [limited(split, settings) for split in splits]


def read_function_splits(settings: Settings) -> tuple[FunctionVocabularies, list[list[Function]]]:
    """The frequent names and words of the training files, and functions of three splits of a folder or the library."""
    assert settings.names is not None
    assert settings.max_nodes is not None
    with file_errors(f"{settings.data} cannot be read", "Give another --data DIR"):
        functions = read_functions(settings.data, settings.max_nodes)
    files = [[function for function in functions if split_of(function.file) == split] for split in SPLITS]
    for split, found in zip(SPLITS, files, strict=True):
        if not found:
            raise CommandError(
                f"there are no functions for the {split} data, of {len(functions):,} in all. Files are assigned by "
                "their paths: give --data DIR with more of them"
            )
    names = Vocabulary(name for name, _ in Counter(function.name for function in files[0]).most_common(settings.names))
    names.freeze()
    train = [function for function in files[0] if function.name in names]
    words = frequent(Counter(word for function in train for node in nodes(function.tree) for word in node.tokens))
    vocabularies = FunctionVocabularies(Vocabulary(), Vocabulary(), words, names)
    splits = number_splits(files, lambda split: number_functions(split, vocabularies), vocabularies[:2])
    return vocabularies, [limited(split, settings) for split in splits]


def read_split(settings: Settings, read: Callable[[Path], list[Any]], path: Path) -> list[Any]:
    """The samples of a file or a folder."""
    advice = f"What --data DIR must hold: jitbatch train {settings.task} --help"
    with file_errors(f"{path} cannot be read", advice):
        samples = read(path)
    if not samples:
        raise CommandError(f"{path} holds no samples. {advice}")
    return samples


def check_depth(samples: Sequence[Any], path: Path, trees_of: Callable[[Any], Sequence[Any]]) -> None:
    """Refuse trees that are too deep for models, which recurse over them."""
    most = sys.getrecursionlimit() // CALLS
    for position, sample in enumerate(samples, 1):
        deepest = max(map(levels, trees_of(sample)))
        if deepest > most:
            raise CommandError(
                f"{path}: the tree of sample {position} has {deepest:,} levels, and models can read {most}, since "
                f"Python allows {sys.getrecursionlimit():,} nested calls. Leave the sample out"
            )


def levels(tree: Any) -> int:
    """How many levels a tree has.

    >>> levels((1, (2, 3))), levels(Dependency(1, (Dependency(2, ()),)))
    (3, 2)
    """
    count, level = 0, [tree]
    while level:
        level = [child for node in level for child in children(node)]
        count += 1
    return count


def children(tree: Any) -> Sequence[Any]:
    if isinstance(tree, Dependency):
        return tree.children
    return tree if isinstance(tree, tuple) else ()


def frequent(counts: Mapping[str, int]) -> Vocabulary:
    """The words that occur at least twice. All others are the unknown word, whose vector so is trained."""
    words = Vocabulary(word for word, count in counts.items() if count > 1)
    if len(words) == 1:
        raise CommandError(
            "each word of the training data occurs once, so that all are the unknown word. Give more training data"
        )
    words.freeze()
    return words


def paths_of(settings: Settings, suffix: str) -> list[Path]:
    if settings.data is None:
        raise CommandError(
            f"where is the data? Give --data DIR; what it must hold: jitbatch train {settings.task} --help"
        )
    paths = [Path(settings.data) / f"{split}{suffix}" for split in SPLITS]
    for path in paths:
        with file_errors(f"{path} cannot be read", "Give another --data DIR"):
            if not path.exists():
                raise CommandError(
                    f"{path} is missing. What --data DIR must hold: jitbatch train {settings.task} --help"
                )
    return paths


def limited(samples: list[Any], settings: Settings) -> list[Any]:
    """The samples of a split under `--limit`."""
    return samples[: settings.limit]
