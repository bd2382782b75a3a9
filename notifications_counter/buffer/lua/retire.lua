-- Puts a shard out of use for good, after a change of SHARDS: everyone is recounted in other shards. Processes that
-- still use this one count rows, and leave RecountRequests. Intents stay, to be registered elsewhere.
-- KEYS  pending (zset)  flushing (zset)  state (hash)  ready (text)  in_flight (hash)  dirty (zset)  leases (hash)
-- ARGV  1 seconds after which the lasting keys of a test database expire, '' for others
-- Reply nothing
redis.call('UNLINK', pending, flushing, in_flight, dirty, leases, state)
-- rule: retire
redis.call('SET', ready, 'retired')
if ARGV[1] ~= '' then redis.call('EXPIRE', ready, ARGV[1]) end
