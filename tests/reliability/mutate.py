"""Inputs that are nearly right: bytes flipped, cut off and doubled, and trees of JSON or TOML with values exchanged."""

import datetime
import json
import math
import random
from collections.abc import Mapping
from typing import Any

MARK = "zobinject"
"""Must come out of nothing as an element, a macro, a row of a table or a line of its own."""
EVIL = (
    f"<{MARK} src=x onerror=alert(1)>", f"</script></style><{MARK}>", f"'\"><{MARK}>",
    f"\\{MARK}{{\\input{{/etc/passwd}}}}",
    f"a}}\\{MARK}$%&#_^~", f"x\n| {MARK} | 1 |\n\n# {MARK}\n", "\x1b[2J\x1b]0;title\x07", "\x9b31m", "[red]x[/red]",
    "[link=file:///etc/passwd]x", "\r\rOK", "../../../tmp/escape", "/etc/passwd", "..", "~", "a/../../b", "\x00",
    "\u202e",
    "x" * 3000, "\ud800", "{0.__class__}", "%s%n", "=1+1", "${HOME}", "`id`", "nan", "-inf", "1e999", "0x10", "True",
    "",
    " ", "auto", "inf", "none",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 7, 127, 255, 2**31 - 1, 2**31, 2**32, 2**53 + 1, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, 0.0,
    -0.0, 0.5,
    1e-9, 1e-300, 1e308, math.inf, -math.inf, math.nan,
)  # fmt: skip


GROWING = 0.02
"""The share of mutations by which an input grows, up to some millions of items or bytes."""


def grown(random_: random.Random) -> Any:
    """A list, an object or a text that is very long."""
    count = random_.choice((300, 10_000, 600_000))
    kind = random_.randrange(4)
    if kind == 0:
        return dict.fromkeys(map(str, range(count)), 0)
    return "x" * count if kind == 1 else [[] if kind == 2 else 0.5] * count


def nested(random_: random.Random) -> Any:
    """Lists or objects in each other, some deeper than any parser goes."""
    tree: Any = 0
    for _ in range(random_.choice((3, 25, 400))):
        tree = [tree] if random_.random() < 0.5 else {"a": tree}
    return tree


def value(random_: random.Random) -> Any:
    """Something that nobody expects there."""
    kind = random_.randrange(10)
    if random_.random() < GROWING:
        return grown(random_)
    if kind < 3:
        return random_.choice(EVIL)
    if kind < 6:
        return random_.choice(NUMBERS)
    if kind == 9 and random_.random() < 0.1:
        return nested(random_)
    return random_.choice(
        (None, True, False, [], {}, [None], [[]], {"a": 1}, ["a", 1], [1, 2, 3, 4, 5], {"": {}}, [0] * 300)
    )


def flipped(random_: random.Random, data: bytes) -> bytes:
    """``data`` with some bytes changed, lost, doubled or put in, or cut off, or some of them very many times."""
    changed = bytearray(data)
    if random_.random() < GROWING:
        place = random_.randrange(len(changed) + 1)
        piece = changed[place : place + random_.randrange(1, 8)] or b"["
        changed[place:place] = piece * random_.choice((300, 10_000, 1_000_000))
    for _ in range(random_.choice((1, 1, 1, 2, 5))):
        place, kind = random_.randrange(len(changed) + 1), random_.randrange(7)
        if kind == 0:
            del changed[place:]
        elif kind == 1:
            del changed[place : place + random_.randrange(1, 40)]
        elif kind == 2:
            changed[place:place] = changed[place : place + random_.randrange(1, 200)]
        elif kind == 3:
            changed[place:place] = random_.choice(EVIL).encode("utf-8", "surrogatepass")
        elif kind == 4:
            changed[place:place] = random_.randbytes(random_.randrange(1, 9))
        elif place < len(changed):
            changed[place] = changed[place] ^ (1 << random_.randrange(8)) if kind == 5 else random_.randrange(256)
    return bytes(changed)


def edited(random_: random.Random, tree: Any) -> Any:
    """``tree``, which is changed in some places: values of other kinds, keys gone, new, renamed or exchanged."""
    root = {"": tree}
    for _ in range(random_.choice((1, 1, 1, 2, 4))):
        holder: Any = root
        while True:
            keys = list(holder) if isinstance(holder, dict) else range(len(holder))
            key = random_.choice(keys)
            inner = holder[key]
            if not isinstance(inner, (dict, list)) or not inner or random_.random() < 0.12:
                break
            holder = inner
        _edit(random_, holder, key)
    return root[""]


def _edit(random_: random.Random, holder: Any, key: Any) -> None:
    kind = random_.randrange(12)
    if key == "" and kind in (1, 2, 3):
        kind = 0
    if kind == 1:
        del holder[key]
    elif kind == 2 and isinstance(holder, dict):
        holder[random_.choice(EVIL)] = holder.pop(key)
    elif kind == 3 and isinstance(holder, dict):
        holder[random_.choice(EVIL)] = value(random_)
    elif kind == 4 and isinstance(holder[key], (int, float)):
        holder[key] = holder[key] * random_.choice((-1, 2, 0.5, 10**20))
    elif kind == 5 and isinstance(holder[key], str):
        holder[key] = holder[key] + random_.choice(EVIL)
    elif kind == 6 and isinstance(holder[key], str):
        holder[key] = [holder[key]]
    elif kind == 7 and isinstance(holder[key], (list, dict)):
        holder[key] = str(holder[key])[:200]
    elif kind == 8 and isinstance(holder, list):
        holder.insert(random_.randrange(len(holder) + 1), value(random_))
    else:
        holder[key] = value(random_)
    if isinstance(holder, list) and not holder:
        holder.append(value(random_))


def json_text(tree: Any) -> bytes:
    """``tree`` as JSON, as Python writes it: also NaN, and halves of pairs of escapes."""
    return json.dumps(tree).encode()


def toml_text(tree: Mapping[str, Any]) -> bytes:
    """``tree`` as TOML, every section in one line; what TOML cannot say is left out."""
    if not isinstance(tree, dict):
        return str(tree).encode("utf-8", "surrogatepass")
    try:
        lines = [f"{_key(key)} = {text}" for key, value in tree.items() if (text := _toml(value)) is not None]
    except RecursionError:
        lines = [f"a = {'[' * 2000}{']' * 2000}"]
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass")


def _toml(value: Any) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, list):
        return f"[{', '.join(text for item in value if (text := _toml(item)) is not None)}]"
    if isinstance(value, dict):
        pairs = [f"{_key(key)} = {text}" for key, item in value.items() if (text := _toml(item)) is not None]
        return f"{{{', '.join(pairs)}}}"
    return None


def _key(key: str) -> str:
    return json.dumps(key)
