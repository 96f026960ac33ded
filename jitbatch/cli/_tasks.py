"""What can be trained: data, a model, its loss of one sample, and how well it does."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jitbatch import jitbatch
from jitbatch.cli import _baselines
from jitbatch.cli._errors import CommandError, require
from jitbatch.cli._files import reason
from jitbatch.cli._memory import made
from jitbatch.cli._metrics import (
    accuracy,
    attachment_scores,
    item_accuracy,
    mean_absolute_error,
    mean_squared_error,
    pearson,
    spearman,
)
from jitbatch.cli._settings import Settings
from jitbatch.cli._splits import SPLITS, limited, number_splits, read_function_splits, read_parsed, read_splits
from jitbatch.data import (
    Parsed,
    Transitions,
    Vocabulary,
    make_listops,
    read_g2,
    read_sick,
    read_sst,
    read_vectors,
    tagged,
    transitions,
)
from jitbatch.data.ast_functions import nodes
from jitbatch.data.listops import to_string
from jitbatch.data.transitions import tree_of
from jitbatch.models import (
    CharacterTagger,
    FunctionNamer,
    ListOpsTreeLSTM,
    MoleculeEnergy,
    Sentiment,
    Similarity,
    StackLSTMParser,
    losses_at_rest,
)


@runtime_checkable
class Decorated(Protocol):
    """A decorated function of a model and one sample."""

    def __call__(self, model: Any, sample: Any, /) -> Any: ...
    def batch(self, *args: Any) -> Any: ...


@dataclass(frozen=True)
class Task:
    """Something to train.

    Attributes:
        description: of the data, for people.
        train, dev, test: samples.
        model: the module, initialised.
        loss: of the model and one sample.
        predict: of the model and one sample; or, where what is computed depends on what has been predicted, a plain
            function of the model and a minibatch.
        metrics: of predictions and samples, by name; the first one says which epoch is best, larger is better.
        baselines: what simpler methods achieve on the test data, by name, in terms of the first metric.
        differentiable: the inputs of samples that `losses` differentiates.
        losses: of the model and a minibatch in the body of a step: what is minimised in place of `loss`.
    """

    description: str
    train: Sequence[Any]
    dev: Sequence[Any]
    test: Sequence[Any]
    model: nnx.Module
    loss: Decorated
    predict: Decorated | Callable[[Any, Sequence[Any]], list[Any]]
    metrics: Callable[[Sequence[Any], Sequence[Any]], dict[str, float]]
    baselines: Mapping[str, Callable[[], float]] = field(default_factory=dict)
    differentiable: str | None = None
    losses: Callable[[Any, Any], jax.Array] | None = None


def make_task(settings: Settings) -> Task:
    return TASKS[settings.task](settings)


# ListOps


@jitbatch
def predict_listops(model: Any, sample: Any) -> Any:
    return model.predict(sample.expression)


def listops(settings: Settings) -> Task:
    assert settings.train_size is not None
    assert settings.depth is not None
    sizes = [settings.train_size, 1000, 2000]
    try:
        splits = make_listops(settings.seed, sizes, settings.depth)
    except ValueError as error:  # there are not as many
        raise CommandError(f"{error}. Give a larger --depth or a smaller --train-size") from None
    train, dev, test = (limited(split, settings) for split in splits)
    examples = ", ".join(f"{to_string(sample.expression)} = {sample.value}" for sample in train[:2])
    return Task(
        description=f"ListOps: {len(train):,} expressions of depth 1 to {settings.depth}, for example {examples}",
        train=train,
        dev=dev,
        test=test,
        model=made(lambda: ListOpsTreeLSTM(settings.hidden, rngs=nnx.Rngs(settings.seed)), settings),
        loss=ListOpsTreeLSTM.loss,
        predict=predict_listops,
        metrics=lambda predictions, samples: {"accuracy": accuracy(predictions, [s.value for s in samples])},
        baselines={
            "bag of symbols": lambda: _baselines.bag_of_symbols(train, test, settings.seed),
            "majority class": lambda: _baselines.majority([s.value for s in train], [s.value for s in test]),
        },
    )


# SICK


@jitbatch
def predict_sick(model: Any, sample: Any) -> Any:
    return model.predict(sample.left, sample.right)


def sick(settings: Settings) -> Task:
    words, (train, dev, test) = read_splits(
        settings, "", read_sick, lambda pair: (*tokens(pair.left), *tokens(pair.right)), lambda pair: pair[:2]
    )
    size, vectors = embedding(settings, words)
    model = made(lambda: Similarity(len(words), size, settings.hidden, rngs=nnx.Rngs(settings.seed)), settings)
    set_vectors(model.encoder.embed, vectors)

    def metrics(predictions: Sequence[Any], samples: Sequence[Any]) -> dict[str, float]:
        scores = [sample.score for sample in samples]
        return {
            "pearson": pearson(predictions, scores),
            "spearman": spearman(predictions, scores),
            "mse": mean_squared_error(predictions, scores),
        }

    return Task(
        description=described("SICK", [train, dev, test], "pairs of sentences", words),
        train=train,
        dev=dev,
        test=test,
        model=model,
        loss=Similarity.loss,
        predict=predict_sick,
        metrics=metrics,
    )


def tokens(tree: Any) -> Iterator[int]:
    yield tree.token
    for child in tree.children:
        yield from tokens(child)


# SST


@jitbatch
def predict_sst(model: Any, sample: Any) -> Any:
    return model.predict(sample.tree)


def sst(settings: Settings) -> Task:
    words, (train, dev, test) = read_splits(
        settings, ".txt", read_sst, lambda sentence: jax.tree.leaves(sentence.tree), lambda sentence: [sentence.tree]
    )
    size, vectors = embedding(settings, words)
    model = made(lambda: Sentiment(len(words), size, settings.hidden, rngs=nnx.Rngs(settings.seed)), settings)
    set_vectors(model.encoder.embed, vectors)

    def roots(samples: Sequence[Any]) -> list[int]:
        return [int(sample.labels[-1]) for sample in samples]

    return Task(
        description=described("SST", [train, dev, test], "sentences, five classes", words),
        train=train,
        dev=dev,
        test=test,
        model=model,
        loss=Sentiment.loss,
        predict=predict_sst,
        metrics=lambda predictions, samples: {"accuracy": accuracy(predictions, roots(samples))},
        baselines={"majority class": lambda: _baselines.majority(roots(train), roots(test))},
    )


# Tagging and parsing


@jitbatch(out="ragged")
def predict_tags(model: Any, sample: Any) -> Any:
    return model.predict.__wrapped__(sample.words)


def tagger(settings: Settings) -> Task:
    words, parsed = read_parsed(settings)
    tags, characters = Vocabulary(), Vocabulary()
    train, dev, test = number_splits(parsed, lambda split: tagged(split, words, tags, characters), [tags, characters])
    size, vectors = embedding(settings, words)
    sizes = len(words), len(characters), len(tags), size, settings.hidden
    model = made(lambda: CharacterTagger(*sizes, rngs=nnx.Rngs(settings.seed)), settings)
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
    model = made(lambda: StackLSTMParser(*sizes, rngs=nnx.Rngs(settings.seed)), settings)
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


# Functions and their names


def ast(settings: Settings) -> Task:
    vocabularies, (train, dev, test) = read_function_splits(settings)
    assert settings.embedding is not None
    kinds, fields, words, firsts = map(len, vocabularies)
    sizes = kinds, fields, words, firsts, settings.embedding, settings.hidden
    count = sum(1 for split in (train, dev, test) for sample in split for _ in nodes(sample.tree))

    def names(samples: Sequence[Any]) -> list[int]:
        return [sample.name for sample in samples]

    def types(tree: Any) -> list[int]:
        return [node.kind for node in nodes(tree)]

    def types_and_words(tree: Any) -> list[int]:
        return types(tree) + [kinds + word for node in nodes(tree) for word in node.tokens]

    def linear(items: Callable[[Any], list[int]]) -> float:
        bags = ([(items(sample.tree), sample.name) for sample in split] for split in (train, dev, test))
        return _baselines.bag_of_items(*bags, seed=settings.seed)

    return Task(
        description=described("ast", [train, dev, test], f"functions, {count:,} nodes", vocabularies.tokens)
        + f"; which of {firsts - 1} words does the name begin with? No file is in two splits",
        train=train,
        dev=dev,
        test=test,
        model=made(lambda: FunctionNamer(*sizes, rngs=nnx.Rngs(settings.seed)), settings),
        loss=FunctionNamer.loss,
        predict=FunctionNamer.predict,
        metrics=lambda predictions, samples: {"accuracy": accuracy(predictions, names(samples))},
        baselines={
            "bag of node types and words": lambda: linear(types_and_words),
            "bag of node types": lambda: linear(types),
            "majority class": lambda: _baselines.majority(names(train), names(test)),
        },
    )


# Molecules


def molecules(settings: Settings) -> Task:
    require(["ase"], "molecules")
    elements, _, found = read_g2()
    order = np.random.default_rng(settings.seed).permutation(len(found))
    parts = np.split(order, [96, 118])
    train, dev, test = (limited([found[position] for position in part], settings) for part in parts)
    by_element = _baselines.composition(train, len(elements))
    model = made(lambda: MoleculeEnergy(len(elements), settings.hidden, rngs=nnx.Rngs(settings.seed)), settings)
    model.reference.embedding[...] = jnp.asarray(by_element, jnp.float32)[:, None]  # training begins at composition

    def energies(samples: Sequence[Any]) -> list[float]:
        return [sample.energy for sample in samples]

    def metrics(predictions: Sequence[Any], samples: Sequence[Any]) -> dict[str, float]:
        return {
            "negative mae (eV)": -mean_absolute_error(predictions, energies(samples)),
            "rmse (eV)": mean_squared_error(predictions, energies(samples)) ** 0.5,
        }

    def with_forces(model: Any, samples: Any) -> jax.Array:
        assert settings.forces is not None
        return losses_at_rest(model, samples, settings.forces)

    if settings.forces and settings.executor == "loop":
        raise CommandError("forces are of minibatches: leave --executor loop, or --forces, out")

    def composed(samples: Sequence[Any]) -> list[float]:
        return [float(by_element[sample.species].sum()) for sample in samples]

    sizes = " / ".join(f"{len(samples):,}" for samples in (train, dev, test))
    return Task(
        description=f"molecules: {sizes} molecules of the G2 set, {len(elements)} elements; atomization energies in eV",
        train=train,
        dev=dev,
        test=test,
        model=model,
        loss=MoleculeEnergy.loss,
        differentiable="positions" if settings.forces else None,
        losses=with_forces if settings.forces else None,
        predict=MoleculeEnergy.energy,
        metrics=metrics,
        baselines={
            "composition: an energy for each element": lambda: metrics(composed(test), test)["negative mae (eV)"],
            "the mean energy": lambda: metrics([float(np.mean(energies(train)))] * len(test), test)[
                "negative mae (eV)"
            ],
        },
    )


TASKS: dict[str, Callable[[Settings], Task]] = {
    "listops": listops,
    "sick": sick,
    "sst": sst,
    "tagger": tagger,
    "parser": parser,
    "ast": ast,
    "molecules": molecules,
}


# Parts of the above


def described(name: str, splits: Sequence[Sequence[Any]], what: str, words: Vocabulary) -> str:
    sizes = " / ".join(f"{len(samples):,}" for samples in splits)
    return f"{name}: {sizes} {what}; {len(words):,} words"


def embedding(settings: Settings, words: Vocabulary) -> tuple[int, np.ndarray | None]:
    """The size of word vectors and, where a file was given, the vectors."""
    if settings.vectors is None:
        assert settings.embedding is not None
        return settings.embedding, None
    try:
        table, found = read_vectors(settings.vectors, words, settings.seed)
    except OSError as error:
        raise CommandError(f"the vectors cannot be read: {reason(error)}. Give another file by --vectors") from None
    except ValueError as error:
        raise CommandError(
            f"the vectors cannot be read: {error}. Mend the file, or give another by --vectors"
        ) from None
    if not found:
        raise CommandError(f"{settings.vectors} has none of the {len(words):,} words. Give another file by --vectors")
    return table.shape[1], table


def set_vectors(embed: nnx.Embed, vectors: np.ndarray | None) -> None:
    if vectors is not None:
        embed.embedding[...] = jnp.asarray(vectors)
