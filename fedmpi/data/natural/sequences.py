"""Texts as sequences of tokens: characters to be predicted one by one, or words.

Invariant: each character but the first of a text is predicted exactly once, from those before it in its
sequence; where a sequence is padded the label is -1.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from fedmpi.data.natural.clients import Client, Options, Source

PADDED = -1
PADDING, UNKNOWN = "<pad>", "<unk>"  # tokens 0 and 1 of words
Texts = dict[str, list[str]]  # client -> texts


def characters(texts: Iterable[str]) -> tuple[str, ...]:
    """All characters that occur, sorted."""
    return tuple(sorted(set().union(*texts)))


def token_type(count: int) -> type:
    """The smallest type of integers for so many tokens, of those that torch takes."""
    return np.uint8 if count <= 256 else np.int32


def windows(texts: Sequence[str], number: dict[str, int], length: int) -> tuple[np.ndarray, np.ndarray]:
    """(sequences, length) tokens, and the tokens that follow each of them, -1 where there is none."""
    counts = [-(-max(len(text) - 1, 0) // length) for text in texts]
    inputs = np.zeros((sum(counts), length), token_type(len(number)))
    labels = np.full((sum(counts), length), PADDED, np.int64)
    row = 0
    for text, count in zip(texts, counts, strict=True):
        tokens = np.array([number[character] for character in text], np.int64)
        for start in range(0, count * length, length):
            ahead = tokens[start + 1 : start + length + 1]
            inputs[row, : len(ahead)] = tokens[start : start + len(ahead)]
            labels[row, : len(ahead)] = ahead
            row += 1
    return inputs, labels


def next_characters(
    what: str, train: Texts, test: Texts | None, held_out: Texts | None, options: Options
) -> Source:
    """The source of a task in which each next character is predicted."""
    everything = [text for part in (train, test, held_out) if part for own in part.values() for text in own]
    vocabulary = characters(everything)
    number = {character: n for n, character in enumerate(vocabulary)}

    def of(name: str, texts: list[str]) -> Client:
        if test is not None:
            tested = windows(test.get(name, []), number, options.length)
            return Client(name, *windows(texts, number, options.length), tested)
        return Client(name, *windows(texts, number, options.length))

    return Source(
        what=what,
        clients=[of(name, texts) for name, texts in train.items()],
        held_out=[
            Client(name, *windows(texts, number, options.length))
            for name, texts in (held_out or {}).items()
        ],
        vocabulary=vocabulary,
        num_classes=max(len(vocabulary), 1),
        is_ordered=True,
    )


_WORD = re.compile(r"\w+|[^\w\s]")


def words(text: str) -> list[str]:
    """Words and marks, in lower case.

    >>> words("Good, isn't it?")
    ['good', ',', 'isn', "'", 't', 'it', '?']
    """
    return _WORD.findall(text.lower())


def frequent_words(texts: Iterable[str], most: int) -> tuple[str, ...]:
    """Padding, unknown, and the most frequent words; of equally frequent ones the first in the alphabet."""
    counts = Counter(word for text in texts for word in words(text))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return PADDING, UNKNOWN, *ranked[: max(most - 2, 0)]


def word_sequences(texts: Sequence[str], number: dict[str, int], length: int) -> np.ndarray:
    """(texts, length) tokens: the first words of each, 0 after its end."""
    inputs = np.zeros((len(texts), length), token_type(len(number)))
    for row, text in enumerate(texts):
        tokens = [number.get(word, 1) for word in words(text)[:length]]
        inputs[row, : len(tokens)] = tokens
    return inputs


def word_counts(texts: Sequence[str], number: dict[str, int]) -> np.ndarray:
    """(texts, words): how often each word occurs in each text."""
    inputs = np.zeros((len(texts), len(number)), np.float32)
    for row, text in enumerate(texts):
        for word in words(text):
            inputs[row, number.get(word, 1)] += 1
    return inputs
