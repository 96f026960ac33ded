"""A small artificial English, so that taggers and parsers can be tried without a treebank.

Many of its words have several tags (`fish` is a noun or a verb, `her` a pronoun or a determiner), to be told apart by
what stands around them, and prepositional phrases belong to a verb or to a noun.
"""

from typing import NamedTuple

import numpy as np

from jitbatch.data.conllu import Parsed

LEXICON = {
    "DET": ["the", "a", "every", "some", "her", "his", "this", "that"],
    "ADJ": ["old", "light", "cold", "wild", "dry", "green", "clean", "quiet", "young", "slow"],
    "NOUN": [
        "fish",
        "watch",
        "plant",
        "dog",
        "saw",
        "light",
        "cold",
        "garden",
        "river",
        "man",
        "play",
        "hand",
        "walk",
        "water",
        "duck",
        "park",
        "table",
        "cook",
    ],
    "VERB": [
        "fish",
        "watch",
        "plant",
        "saw",
        "light",
        "clean",
        "dry",
        "play",
        "hand",
        "walk",
        "water",
        "duck",
        "cook",
        "love",
        "park",
        "table",
        "like",
    ],
    "PRON": ["she", "he", "it", "they", "her", "him", "this", "that"],
    "ADP": ["in", "near", "under", "with", "by", "like", "past"],
    "ADV": ["slowly", "often", "past", "fast", "well", "near"],
    "AUX": ["can", "must", "may"],
    "CCONJ": ["and", "or"],
    "SCONJ": ["that"],
    "PUNCT": [".", "!"],
}
SAYING = ["think", "know", "say", "hope"]


class _Token(NamedTuple):
    word: str
    tag: str


class _Phrase(NamedTuple):
    """A head and its dependents, before and after it, each with its relation."""

    head: _Token
    before: list[tuple[str, "_Phrase"]]
    after: list[tuple[str, "_Phrase"]]


class _Grammar:
    """Draws phrases; the deeper a phrase is, the fewer optional parts it has."""

    def __init__(self, rng: np.random.Generator):
        self.rng = rng

    def chance(self, probability: float) -> bool:
        return bool(self.rng.random() < probability)

    def word(self, tag: str, words: list[str] | None = None) -> _Phrase:
        chosen = words or LEXICON[tag]
        return _Phrase(_Token(chosen[self.rng.integers(len(chosen))], tag), [], [])

    def noun_phrase(self, depth: int) -> _Phrase:
        if self.chance(0.3):
            return self.word("PRON")
        noun = self.word("NOUN")
        noun.before.append(("det", self.word("DET")))
        while self.chance(0.3):
            noun.before.append(("amod", self.word("ADJ")))
        if self.chance(0.3 / depth):
            noun.after.append(("nmod", self.prepositional_phrase(depth + 1)))
        if self.chance(0.15 / depth):
            other = self.noun_phrase(depth + 1)
            other.before.insert(0, ("cc", self.word("CCONJ")))
            noun.after.append(("conj", other))
        return noun

    def prepositional_phrase(self, depth: int) -> _Phrase:
        phrase = self.noun_phrase(depth)
        phrase.before.insert(0, ("case", self.word("ADP")))
        return phrase

    def clause(self, depth: int) -> _Phrase:
        says = self.chance(0.2 / depth)
        verb = self.word("VERB", SAYING if says else None)
        verb.before.append(("nsubj", self.noun_phrase(depth)))
        if self.chance(0.3):
            verb.before.append(("aux", self.word("AUX")))
        if says:
            inner = self.clause(depth + 1)
            inner.before.insert(0, ("mark", self.word("SCONJ")))
            verb.after.append(("ccomp", inner))
        elif self.chance(0.6):
            verb.after.append(("obj", self.noun_phrase(depth)))
        if not says and self.chance(0.3):
            verb.after.append(("obl", self.prepositional_phrase(depth + 1)))
        if not says and self.chance(0.3):
            verb.after.append(("advmod", self.word("ADV")))
        return verb


def make_toy_language(seed: int, sizes: list[int]) -> list[list[Parsed]]:
    """Sets of different sentences, none of them in two sets.

    >>> train, test = make_toy_language(0, [2, 1])
    >>> [" ".join(sentence.words) for sentence in train]
    ['it can hand !', 'some cook may play .']
    >>> train[0].tags, train[0].heads
    (['PRON', 'AUX', 'VERB', 'PUNCT'], [3, 3, 0, 3])
    """
    grammar = _Grammar(np.random.default_rng(seed))
    distinct: dict[str, Parsed] = {}
    while len(distinct) < sum(sizes):
        sentence = grammar.clause(1)
        sentence.after.append(("punct", grammar.word("PUNCT")))
        parsed = Parsed([], [], [], [])
        _write(sentence, "root", parsed)
        distinct[" ".join(parsed.words)] = parsed
    # Short sentences are found early: without shuffling, the later sets would be harder.
    order = grammar.rng.permutation(len(distinct))
    samples = list(distinct.values())
    return [[samples[i] for i in part] for part in np.split(order, np.cumsum(sizes)[:-1])]


def _write(phrase: _Phrase, relation: str, into: Parsed) -> int:
    """Append the words of a phrase to a sentence; the position of its head is returned, and is to be given a head."""
    dependents = [_write(part, name, into) for name, part in phrase.before]
    into.words.append(phrase.head.word)
    into.tags.append(phrase.head.tag)
    into.relations.append(relation)
    into.heads.append(0)
    position = len(into.words)
    dependents += [_write(part, name, into) for name, part in phrase.after]
    for dependent in dependents:
        into.heads[dependent - 1] = position
    return position
