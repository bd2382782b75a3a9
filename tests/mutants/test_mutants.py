"""What `make mutants` changes. Whether tests notice it is for the nightly run to say."""

from collections.abc import Callable, Iterator

import pytest

from tests.mutants.__main__ import lua, python

pytestmark = pytest.mark.once

LUA = """
-- rule: lease
redis.call('DEL', key)
-- rules: registry, grounded
local lands = intent and not intent.grounded
if total == ARGV[1] then -- rule: mark
  return
end
"""

PYTHON = """
if row is None or not row.ready:  # rule: ready
    pass
# rule: touch
touch("ä" < owner)

def wait():
    '''Wait (rule: slow).'''
    sleep(1)
    return True
"""


@pytest.mark.parametrize(
    ("find", "text", "found"),
    [
        (
            lua,
            LUA,
            [
                "redis.call('DEL', key) -> ",
                "intent and not intent.grounded -> true",
                "not  -> ",
                "== -> ~=",
            ],
        ),
        (
            python,
            PYTHON,
            [
                "row is None or not row.ready -> True",
                "row is None or not row.ready -> False",
                'touch("ä" < owner) -> pass',
                "sleep(1)\n    return True -> return None",
                "row is None -> (not (row is None))",
                "not row.ready -> bool(row.ready)",
                '"ä" < owner -> (not ("ä" < owner))',
            ],
        ),
    ],
    ids=["Lua", "Python"],
)
def test_what_is_changed(find: Callable[[str], Iterator[tuple[int, int, str]]], text: str, found: list[str]) -> None:
    bytewise = text.encode().decode("latin-1")
    changes = [f"{bytewise[start:end]} -> {new}".encode("latin-1").decode() for start, end, new in find(bytewise)]
    assert changes == found
