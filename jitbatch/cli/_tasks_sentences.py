"""Tasks of sentences: a tagger and a parser."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from flax import nnx

from jitbatch import jitbatch
from jitbatch.cli import _baselines
from jitbatch.cli._errors import CommandError
from jitbatch.cli._memory import make_model
from jitbatch.cli._metrics import attachment_scores, item_accuracy
from jitbatch.cli._settings import Settings
from jitbatch.cli._splits import SPLITS, number_splits, read_parsed
from jitbatch.cli._task import Task, described, embedding, set_vectors
from jitbatch.data import Parsed, Transitions, Vocabulary, tagged, transitions
from jitbatch.data.transitions import tree_of
from jitbatch.models import CharacterTagger, StackLSTMParser


@jitbatch(out="ragged")
def predict_tags(model: Any, sample: Any) -> Any:
    return model.predict.__wrapped__(sample.words)


def tagger(settings: Settings) -> Task:
    words, parsed = read_parsed(settings)
    tags, characters = Vocabulary(), Vocabulary()
    train, dev, test = number_splits(parsed, lambda split: tagged(split, words, tags, characters), [tags, characters])
    size, vectors = embedding(settings, words)
    sizes = len(words), len(characters), len(tags), size, settings.hidden
    model = make_model(lambda: CharacterTagger(*sizes, rngs=nnx.Rngs(settings.seed)), settings)
    set_vectors(model.embed, vectors)

    def labels(samples: Sequence[Any]) -> list[np.ndarray]:
        return [sample.tags for sample in samples]

    def words_and_tags(sentences: Iterable[Parsed]) -> list[tuple[str, str]]:
        return [pair for sentence in sentences for pair in zip(sentence.words, sentence.tags, strict=True)]

    train_words, _, test_words = map(words_and_tags, parsed)
    return Task(
        description=described("tagger", [train, dev, test], f"sentences, {len(tags) - 1} tags", words),
        train=train,
        dev=dev,
        test=test,
        model=model,
        loss=CharacterTagger.loss,
        predict=predict_tags,
        metrics=lambda predictions, samples: {"accuracy": item_accuracy(predictions, labels(samples))},
        baselines={
            "most frequent tag of each word": lambda: _baselines.most_frequent(train_words, test_words),
            "majority class": lambda: _baselines.majority(*([tag for _, tag in s] for s in (train_words, test_words))),
        },
    )


def parser(settings: Settings) -> Task:
    words, parsed = read_parsed(settings)
    tags, relations = Vocabulary(), Vocabulary()
    oracles = number_splits(parsed, lambda split: transitions(split, words, tags, relations), [tags, relations])
    train, dev, test = (oracle.samples for oracle in oracles)
    for split, samples in zip(SPLITS, (train, dev, test), strict=True):
        if not samples:
            raise CommandError(f"no sentence of the {split} data is projective, as the parser needs it. Add some")
    skipped = sum(oracle.skipped for oracle in oracles)
    size, vectors = embedding(settings, words)
    sizes = len(words), len(tags), len(relations), size, settings.hidden
    model = make_model(lambda: StackLSTMParser(*sizes, rngs=nnx.Rngs(settings.seed)), settings)
    set_vectors(model.embed_word, vectors)

    def metrics(predictions: Sequence[Any], samples: Sequence[Any]) -> dict[str, float]:
        found = [tree_of(actions, len(sample.words)) for actions, sample in zip(predictions, samples, strict=True)]
        return attachment_scores(found, [right_tree(sample) for sample in samples])

    train_heads, test_heads = tags_and_distances(train), tags_and_distances(test)
    left_out = f", {skipped} left out because they are not projective" if skipped else ""
    return Task(
        description=described("parser", [train, dev, test], f"sentences{left_out}", words),
        train=train,
        dev=dev,
        test=test,
        model=model,
        loss=StackLSTMParser.loss,
        predict=lambda model, samples: model.parse([s.words for s in samples], [s.tags for s in samples]),
        metrics=metrics,
        baselines={
            "most frequent distance of the head by tag": lambda: _baselines.most_frequent(train_heads, test_heads),
            "most frequent distance of the head": lambda: _baselines.majority(
                *([distance for _, distance in heads] for heads in (train_heads, test_heads))
            ),
        },
    )


def right_tree(sample: Transitions) -> tuple[list[int], list[int]]:
    """The head and the relation of each word."""
    return tree_of(sample.actions.tolist(), len(sample.words))


def tags_and_distances(samples: Iterable[Transitions]) -> list[tuple[int, int | str]]:
    """Each word's tag, and how far away its head is."""
    return [
        (int(tag), head - position if head else "root")
        for sample in samples
        for position, (tag, head) in enumerate(zip(sample.tags, right_tree(sample)[0], strict=True), 1)
    ]
