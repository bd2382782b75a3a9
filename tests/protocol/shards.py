"""A change of SHARDS as a model, explored exhaustively.

The old and the new shards have different keys, perhaps on different servers, so no script reaches both. A flusher with
another number than that of the shards' rows retires the old shards, and moves their intents to its own. Any flusher may
be killed between two of these steps, and be started again with either number.

  READ   a read returns the number of rows at some moment between its start and its end
  END    when everything has stopped, a flusher with either number makes the counter equal to the rows

    python -m tests.protocol.shards                  # every scenario: 'bad 0' on each line
    python -m tests.protocol.shards --drop retire    # without one rule: the shortest history that breaks

There is one shard of each number, with one owner: what ``model.py`` explores is one number here.
"""

RULES = {
    "retire": "nothing is announced or confirmed in old shards",
    "register": "their intents are added to the new ones",
    "highest": "a process without a row of its number is behind all others",
    "reuse": "a shard that was retired is used again as if its Redis were new",
    "rows": "the rows of new shards exist before an old one is retired",
    "alone": "shards are replaced under a lock, by whose number is not yet replaced itself",
    "stays": "a row that a replaced flusher has made goes again",
}
BREAKS = {  # the scenario in which that is found soonest
    "retire": "writer, flusher, reader",
    "register": "writer, flusher, reader",
    "highest": "new writer, flusher, reader",
    "reuse": "flusher, taken back",
    "rows": "writer, flusher killed, taken back",
    "alone": "writer, flusher, taken back",
    "stays": "flusher, taken back",
}
OLD, NEW = 0, 1  # numbers of shards
MOVED = -1  # in place of the epoch of an intent
RETIRED = -1  # in place of the epoch of a shard
