"""Functions as syntax trees: what is read of them, what is not, and which file is in which split."""

from pathlib import Path

import pytest

from jitbatch.data import Vocabulary
from jitbatch.data.ast_functions import (
    OWN_NAME,
    SPLITS,
    FunctionVocabularies,
    functions_of,
    nodes,
    number_functions,
    read_functions,
    split_of,
    subtokens,
)


def words(source: str) -> list[str]:
    (function,) = functions_of(source)
    return [token for node in nodes(function.tree) for token in node.tokens]


@pytest.mark.parametrize(
    ("identifier", "found"),
    [
        ("get_size", ["get", "size"]),
        ("getHTTPResponse", ["get", "http", "response"]),
        ("SAX2DOM", ["sax", "2", "dom"]),
        ("größe_ändern", ["größe", "ändern"]),
        ("__", []),
    ],
)
def test_words_of_identifiers(identifier: str, found: list[str]) -> None:
    assert subtokens(identifier) == found


def test_the_name_is_hidden_wherever_the_function_uses_it() -> None:
    found = words("def close_file(self): self.file.close(); super().close_file()")
    assert found.count(OWN_NAME) == 2  # of the definition and of the call
    assert found.count("close") == 1


def test_texts_are_not_read_but_short_numbers_are() -> None:
    found = words('def first(x):\n    """Say hello."""\n    return x[0], x[123456], None, b"hello"')
    assert not {"say", "hello"} & set(found)
    assert {"<str>", "0", "<int>", "None", "<bytes>"} <= set(found)


def test_a_node_knows_its_field_and_operators_are_nodes() -> None:
    ((_, _, tree),) = functions_of("def add(x, y=1): return x + y")
    assert [(node.kind, node.field) for node in nodes(tree)] == [
        ("FunctionDef", "root"),
        ("arguments", "args"),
        ("arg", "args"),
        ("arg", "args"),
        ("Constant", "defaults"),
        ("Return", "body"),
        ("BinOp", "value"),
        ("Name", "left"),
        ("Add", "op"),
        ("Name", "right"),
    ]


def test_methods_and_inner_functions_are_functions_too() -> None:
    source = (
        "class A:\n    def outer(self):\n        def inner(): pass\n        return inner\n    async def wait(self): ..."
    )
    assert sorted(one.name for one in functions_of(source)) == ["inner", "outer", "wait"]


def test_functions_that_are_too_large_or_have_no_name_are_left_out() -> None:
    ten = "def add(x, y=1): return x + y"
    assert functions_of(ten, max_nodes=10)
    assert not functions_of(ten, max_nodes=9)
    assert functions_of(ten, max_depth=4)
    assert not functions_of(ten, max_depth=3)
    assert not functions_of("def _(): pass")
    deep = "def f(x): return " + "-" * 80 + "x"
    assert not functions_of(deep)


def test_files_are_read_in_order_without_tests_copies_and_what_does_not_parse(tmp_path: Path) -> None:
    texts = {
        "b.py": "def get(): return 1",
        "a.py": "def get(): return 1\ndef set(x): x.y = 1",
        "broken.py": "def (:",
        "null.py": "\0",
        "test/test_a.py": "def check(): pass",
        "part/c.py": "def get(): return 2.5",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = read_functions(tmp_path)
    assert [(one.file, one.name) for one in found] == [("a.py", "get"), ("a.py", "set"), ("part/c.py", "get")]
    assert read_functions(tmp_path) == found


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotADirectoryError, match="nowhere"):
        read_functions(tmp_path / "nowhere")


def test_every_split_has_about_its_share_of_the_files() -> None:
    counts = dict.fromkeys(SPLITS, 0)
    for i in range(1000):
        counts[split_of(f"module_{i}.py")] += 1
    for split, share in (("train", 700), ("dev", 100), ("test", 200)):
        assert counts[split] == pytest.approx(share, abs=50)


def test_numbers_of_functions() -> None:
    vocabularies = FunctionVocabularies(Vocabulary(), Vocabulary(), Vocabulary(["self"]), Vocabulary(["get"]))
    for vocabulary in vocabularies[2:]:
        vocabulary.freeze()
    (one,) = number_functions(functions_of("def get(self): return self\ndef put(self): pass"), vocabularies)
    assert one.name == 1
    assert one.tree.tokens == (0,)  # its own name is not in the vocabulary
    assert one.tree.children[1].children[0].tokens == (1,)
    assert [vocabularies.kinds.word(node.kind) for node in nodes(one.tree)][:2] == ["FunctionDef", "arguments"]
