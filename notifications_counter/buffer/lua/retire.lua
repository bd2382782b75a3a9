-- Puts the keys of an old number of shards out of use, for good. What waits there is dropped: everyone is looked at in
-- the new shards. Processes that still use the old ones count rows, and leave RecountRequests.
-- KEYS  pending (zset)  flushing (zset)  state (hash)  ready (text)  intents (hash)  in_flight (hash)  aside (hash)
-- Reply nothing
redis.call('UNLINK', pending, flushing, state, intents, in_flight, aside)
-- rule: unknown_redis
redis.call('SET', ready, 'retired')
