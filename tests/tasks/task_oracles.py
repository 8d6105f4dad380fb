"""What the answer to one example must be, by a plain loop over its token ids. Shares no code with the tasks."""

from __future__ import annotations

from wherefrom.tasks import IGNORED

VARIANTS = [
    "distance",
    "distance:vocabulary=20,max_between=6,side=3",
    "distance:vocabulary=20,max_between=5,side=0,shift=4",
    "distance:vocabulary=20,max_between=6,side=2,shift=3,same_length=true,long_side=9",
    "count",
    "count:vocabulary=12,length=9,triggers=3,max_count=9,long_length=11",
    "recall",
    "recall:keys=6,values=3,pairs=2,long_pairs=5",
    "index",
    "index:symbols=5,copies=2,pointer=last,long_copies=3",
    "copy",
    "copy:symbols=4,shortest=1,longest=3,reverse=true,long_longest=4",
    "parity",
    "parity:shortest=1,longest=4,long_longest=5",
]
"""Setting strings that are put through every test: each task as it comes, and small with other settings."""

DEFAULTS = [variant for variant in VARIANTS if ":" not in variant]


class Ambiguous(Exception):
    """More than one answer is right."""


def distance(row, config):
    firsts = [place for place, token in enumerate(row) if token == 1]
    seconds = [place for place, token in enumerate(row) if token == 2]
    if len(firsts) != 1 or len(seconds) != 1:
        raise Ambiguous
    return abs(seconds[0] - firsts[0]) - 1


def count(row, config):
    found = 0
    for token in row:
        if token <= config.triggers:
            found += 1
    return found


def recall(row, config):
    pairs = [token for token in row if token <= config.keys * config.values]
    questions = [token - 1 - config.keys * config.values for token in row if token > config.keys * config.values]
    matching = [(token - 1) % config.values for token in pairs if (token - 1) // config.values == questions[0]]
    if len(questions) != 1 or len(matching) != 1:
        raise Ambiguous
    return matching[0]


def index(row, config):
    pointers = [token for token in row if token > config.symbols]
    if len(pointers) != 1:
        raise Ambiguous
    content = [token for token in row if token <= config.symbols]
    return content[pointers[0] - config.symbols - 1] - 1


def copy(row, config):
    symbols = [token - 3 for token in row if token >= 3]
    if config.reverse:
        symbols.reverse()
    if row.count(1) != 1 or row.count(2) != len(symbols):
        raise Ambiguous
    answers = iter(symbols)
    return [next(answers) if token == 2 else IGNORED for token in row]


def parity(row, config):
    odd = 0
    for token in row:
        if token == 2:
            odd = 1 - odd
    return odd


ORACLES = {
    "distance": distance,
    "count": count,
    "recall": recall,
    "index": index,
    "copy": copy,
    "parity": parity,
}


def rows(batch):
    """Token ids before the padding, one list for each example."""
    return [ids[:size] for ids, size in zip(batch.token_ids.tolist(), batch.lengths.tolist(), strict=True)]


def answers(batch, row_list, config):
    """What the loops say for `row_list`, in the form of the batch's labels, as lists."""
    found = [ORACLES[config.name](row, config) for row in row_list]
    if batch.labels.ndim == 1:
        return found
    width = batch.labels.shape[1]
    return [row + [IGNORED] * (width - len(row)) for row in found]


def asked(batch):
    """The labels of everything that is asked, flat."""
    return batch.labels[batch.labels != IGNORED]
