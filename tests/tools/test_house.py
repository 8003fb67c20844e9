"""The table of the house's numbers counts what is there."""

from tools.house import numbers, texts_at


def test_numbers_are_those_of_the_files() -> None:
    texts = {
        "zobench/a/__init__.py": "",
        "zobench/a/b.py": "def f():\n    import os\n    return os\n\n\nasync def g():\n    pass\n",
        "zobench/cli/c.py": "x = 1\n",
        "zobench/version.py": "v = 2\n",
        "tests/test_b.py": "def test():\n    import os\n",
    }
    assert numbers(texts) == {
        "lines of `zobench/`, in files": "9 in 4", "of these `zobench/cli/`": "1", "folders of `zobench/`": "2",
        "lines of a function: median, longest": "2, 3", "lines of a module: median, longest": "1, 7",
        "imports inside functions": "1", "lines of `tests/`": "2",
    }  # fmt: skip
    now = texts_at("")
    assert "tools/house.py" not in now
    assert len(now) > 700
