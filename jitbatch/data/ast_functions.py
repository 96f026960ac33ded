"""Functions of Python source files as syntax trees, and the first word of their names, to be guessed from the rest.

Without a folder the files are those of the running interpreter's standard library: there is nothing to download.
"""

import ast
import errno
import hashlib
import os
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Generic, NamedTuple, TypeVar

from jitbatch.data.vocabulary import Vocabulary

Token = TypeVar("Token")

SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
"""Folders of tests and of packages that do not belong to the standard library."""

OWN_NAME = "<own name>"
"""Stands for the name that is to be guessed wherever the function uses it."""

SPLITS = {"train": 70, "dev": 80, "test": 100}
"""The percentile of a file's digest at which a split ends."""


class Syntax(NamedTuple, Generic[Token]):
    """A node of a syntax tree.

    Attributes:
        kind: its class in the module `ast`, for example `Call`.
        field: what it is to its parent, for example `args`.
        tokens: the words of its identifiers: `read_line` has two. A constant has its type or, if short, its value.
        children: the nodes below it, in the order of the source.
    """

    kind: Token
    field: Token
    tokens: tuple[Token, ...]
    children: tuple["Syntax[Token]", ...]


class SourceFunction(NamedTuple):
    """A function as it was read: its file, relative to the folder, and the first word of its name."""

    file: str
    name: str
    tree: Syntax[str]


class Function(NamedTuple):
    """A function, as a sample.

    Attributes:
        tree: the syntax tree, with numbers for node types, fields and words.
        name: the number of the first word of its name.
    """

    tree: Syntax[int]
    name: int


class FunctionVocabularies(NamedTuple):
    """The numbers of node types, fields, words of identifiers, and first words of names."""

    kinds: Vocabulary
    fields: Vocabulary
    tokens: Vocabulary
    names: Vocabulary


def subtokens(identifier: str) -> list[str]:
    """The words of an identifier, in lower case.

    >>> subtokens("_readLine_fromHTTPServer2"), subtokens("__init__"), subtokens("_")
    (['read', 'line', 'from', 'http', 'server', '2'], ['init'], [])
    """
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\d_A-Z]+|\d+", identifier)
    return [word.lower() for word in words]


def functions_of(
    source: str | bytes, file: str = "", max_nodes: int = 200, max_depth: int = 60
) -> list[SourceFunction]:
    """All functions of a source text, methods and inner functions among them.

    Functions whose trees are larger or deeper than allowed are left out, and those whose name has no word.

    Raises:
        SyntaxError: the text is not Python.

    >>> (one,) = functions_of("def get_size(self): return self.size")
    >>> one.name, one.tree.kind, [child.kind for child in one.tree.children]
    ('get', 'FunctionDef', ['arguments', 'Return'])
    >>> one.tree.children[1].children[0]  # self.size
    ... # doctest: +NORMALIZE_WHITESPACE
    Syntax(kind='Attribute', field='value', tokens=('size',),
           children=(Syntax(kind='Name', field='value', tokens=('self',), children=()),))
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what newer releases of Python will refuse
        module = ast.parse(source)
    found = []
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            words = subtokens(node.name)
            if words and _fits(node, max_nodes, max_depth):
                found.append(SourceFunction(file, words[0], _syntax(node, "root", node.name)))
    return found


def read_functions(folder: str | Path | None = None, max_nodes: int = 200, max_depth: int = 60) -> list[SourceFunction]:
    """The functions of all Python files in a folder, or of the standard library. Each tree and name is there once.

    Files are read in the order of their paths. Tests and files that do not parse are left out.

    Args:
        folder: where the files are.
        max_nodes, max_depth: the size of the largest tree.

    Raises:
        NotADirectoryError: there is no such folder.
    """
    root = Path(folder or sysconfig.get_path("stdlib"))
    if not root.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(root))
    distinct: dict[tuple[str, Syntax[str]], SourceFunction] = {}
    for path in sorted(root.rglob("*.py")):
        file = path.relative_to(root)
        if SKIPPED & set(file.parts):
            continue
        try:
            functions = functions_of(path.read_bytes(), file.as_posix(), max_nodes, max_depth)
        except (SyntaxError, ValueError):  # a text with null bytes is a ValueError
            continue
        for function in functions:
            distinct.setdefault((function.name, function.tree), function)
    return list(distinct.values())


def split_of(file: str) -> str:
    """The split that a file belongs to. It depends on the path alone, so other files do not change it.

    >>> [split_of(file) for file in ("json/decoder.py", "calendar.py", "queue.py")]
    ['train', 'train', 'test']
    """
    percentile = int(hashlib.sha256(file.encode()).hexdigest(), 16) % 100
    return next(split for split, end in SPLITS.items() if percentile < end)


def number_functions(functions: Iterable[SourceFunction], vocabularies: FunctionVocabularies) -> list[Function]:
    """Functions as numbers. Those whose names begin with an unknown word are left out."""
    kinds, fields, tokens, names = vocabularies

    def numbered(node: Syntax[str]) -> Syntax[int]:
        words = tuple(tokens[token] for token in node.tokens)
        return Syntax(kinds[node.kind], fields[node.field], words, tuple(map(numbered, node.children)))

    return [Function(numbered(function.tree), names[function.name]) for function in functions if function.name in names]


def nodes(tree: Syntax[Token]) -> Iterator[Syntax[Token]]:
    """All nodes of a tree, each before those below it."""
    yield tree
    for child in tree.children:
        yield from nodes(child)


def _fits(node: ast.AST, max_nodes: int, max_depth: int) -> bool:
    """Whether a tree is small enough, told without recursion."""
    count, depth, level = 0, 0, [node]
    while level and count <= max_nodes and depth <= max_depth:
        count, depth = count + len(level), depth + 1
        level = [child for parent in level for _, child in _children(parent)]
    return count <= max_nodes and depth <= max_depth


def _children(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The nodes below a node and their fields, without those that say whether a name is read or written."""
    for field, value in ast.iter_fields(node):
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, ast.AST) and not isinstance(part, ast.expr_context):
                yield field, part


def _syntax(node: ast.AST, field: str, own_name: str) -> Syntax[str]:
    children = tuple(_syntax(child, name, own_name) for name, child in _children(node))
    return Syntax(type(node).__name__, field, tuple(_tokens(node, own_name)), children)


def _tokens(node: ast.AST, own_name: str) -> Iterator[str]:
    if isinstance(node, ast.Constant):
        short = repr(node.value)
        is_text = isinstance(node.value, str | bytes)
        yield short if len(short) <= 5 and not is_text else f"<{type(node.value).__name__}>"
        return
    for _, value in ast.iter_fields(node):
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, str):
                yield from [OWN_NAME] if part == own_name else subtokens(part)
