"""Google's create_pretraining_data.py and tokenization.py reimplemented from the published rules, for comparison."""

import random
import unicodedata
from collections.abc import Callable

# Text to pieces: clean, space Chinese characters, lower, strip accents, split, match greedily

_CHINESE = [(0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F)]
_CHINESE += [(0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)]


def _is_punctuation(c: str) -> bool:
    return (c.isascii() and c.isprintable() and not c.isalnum() and c != " ") or unicodedata.category(c)[0] == "P"


def google_words(text: str, lower: bool) -> list[str]:
    clean = ""
    for c in text:
        if c in "\0\ufffd" or (unicodedata.category(c) in ("Cc", "Cf") and c not in "\t\n\r"):
            continue
        if c in "\t\n\r" or unicodedata.category(c) == "Zs":
            clean += " "
        elif any(low <= ord(c) <= high for low, high in _CHINESE):
            clean += f" {c} "
        else:
            clean += c
    words = []
    for word in clean.split():
        if lower:
            decomposed = unicodedata.normalize("NFD", word.lower())
            word = "".join(c for c in decomposed if unicodedata.category(c) != "Mn")
        words += "".join(f" {c} " if _is_punctuation(c) else c for c in word).split()
    return words


def google_pieces(text: str, vocabulary: set[str], lower: bool, limit: int = 200) -> list[str]:
    pieces = []
    for word in google_words(text, lower):
        found, start = [], 0
        while start < len(word) and len(word) <= limit:
            prefix = "##" if start else ""
            end = next((e for e in range(len(word), start, -1) if prefix + word[start:e] in vocabulary), None)
            if end is None:
                break
            found.append(prefix + word[start:end])
            start = end
        pieces += found if start == len(word) else ["[UNK]"]
    return pieces


# Files to instances


def google_lines(*files: bytes) -> list[str]:
    """The lines of the files, as TensorFlow's reader passes them to the script."""
    texts = [data.replace(b"\r", b"").decode() for data in files]
    return [line for text in texts if text for line in text.removesuffix("\n").split("\n")]


def google_instances(
    lines: list[str],
    tokenize: Callable[[str], list[str]],
    words: list[str],
    *,
    length: int,
    predictions: int,
    dupes: int,
    seed: int = 12345,
    whole_words: bool = False,
) -> list[dict]:
    """The examples, in the form of `python -m train.prepare --show --json`; words: the vocabulary."""
    rng = random.Random(seed)
    documents: list[list[list[str]]] = [[]]
    for line in lines:
        if not line.strip():
            documents.append([])
        elif tokens := tokenize(line.strip()):
            documents[-1].append(tokens)
    documents = [document for document in documents if document]
    rng.shuffle(documents)
    instances = []
    for _ in range(dupes):
        for number in range(len(documents)):
            for tokens, types, is_random in _pairs(documents, number, rng, length):
                instances.append(_masked(tokens, words, rng, predictions, whole_words))
                instances[-1] |= {"token_type_ids": types, "next_sentence_label": int(is_random)}
    rng.shuffle(instances)
    return instances


def _pairs(documents, number, rng, length):
    document, room = documents[number], length - 3
    target = rng.randint(2, room) if rng.random() < 0.1 else room
    chunk, i = [], 0
    while i < len(document):
        chunk.append(document[i])
        if i == len(document) - 1 or sum(map(len, chunk)) >= target:
            end = rng.randint(1, len(chunk) - 1) if len(chunk) >= 2 else 1
            a = [token for sentence in chunk[:end] for token in sentence]
            b: list[str] = []
            is_random = len(chunk) == 1 or rng.random() < 0.5
            if is_random:
                for _ in range(10):
                    other = rng.randint(0, len(documents) - 1)
                    if other != number:
                        break
                for sentence in documents[other][rng.randint(0, len(documents[other]) - 1) :]:
                    b += sentence
                    if len(b) >= target - len(a):
                        break
                i -= len(chunk) - end
            else:
                b = [token for sentence in chunk[end:] for token in sentence]
            while len(a) + len(b) > room:
                longer = a if len(a) > len(b) else b
                del longer[0 if rng.random() < 0.5 else -1]
            yield ["[CLS]", *a, "[SEP]", *b, "[SEP]"], [0] * (len(a) + 2) + [1] * (len(b) + 1), is_random
            chunk = []
        i += 1


def _masked(tokens, words, rng, predictions, whole_words):
    candidates: list[list[int]] = []
    for i, token in enumerate(tokens):
        if token in ("[CLS]", "[SEP]"):
            continue
        if whole_words and candidates and token.startswith("##"):
            candidates[-1].append(i)
        else:
            candidates.append([i])
    rng.shuffle(candidates)
    wanted = min(predictions, max(1, round(len(tokens) * 0.15)))
    output, positions = list(tokens), []
    for group in candidates:
        if len(positions) >= wanted:
            break
        if len(positions) + len(group) > wanted:
            continue
        for position in group:
            positions.append(position)
            if rng.random() < 0.8:
                output[position] = "[MASK]"
            elif rng.random() >= 0.5:
                output[position] = words[rng.randint(0, len(words) - 1)]
    positions.sort()
    return {"tokens": output, "mlm_positions": positions, "mlm_labels": [tokens[position] for position in positions]}
