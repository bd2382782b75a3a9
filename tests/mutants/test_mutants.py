"""What `make mutants` changes. Whether tests notice it is for the nightly run to say."""

import pytest

from .changes import lua, python

LUA = """
-- rules: lease, registry
redis.call('DEL', key)
local lands = intent and not intent.grounded -- rule: grounded
if total == ARGV[1] then -- rule: mark
  return
end
"""
LUA_CHANGES = """
redis.call('DEL', key) ->
intent and not intent.grounded -> true
not ->
total == ARGV[1] -> true
total == ARGV[1] -> false
== -> ~=
"""
PYTHON = """
if row is None or not row.ready:  # rule: ready
    pass
# rule: touch
touch("ä" < owner)

def wait():
    '''Wait (rule: slow).'''
    sleep(1)
"""
PYTHON_CHANGES = """
row is None or not row.ready -> True
row is None or not row.ready -> False
touch("ä" < owner) -> pass
sleep(1) -> return None
row is None -> (not (row is None))
not row.ready -> bool(row.ready)
"ä" < owner -> (not ("ä" < owner))
"""


@pytest.mark.once
@pytest.mark.parametrize(("find", "text", "changes"), [(lua, LUA, LUA_CHANGES), (python, PYTHON, PYTHON_CHANGES)])
def test_what_is_changed(find, text, changes):
    bytewise = text.encode().decode("latin-1")
    found = [f"{bytewise[start:end].strip()} -> {new}".encode("latin-1").decode() for start, end, new in find(bytewise)]
    assert [change.strip() for change in found] == [change.strip() for change in changes.strip().splitlines()]
