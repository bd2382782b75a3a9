-- Starts an epoch, and its recovery, on a Redis that is in an earlier one. Drops unflushed deltas. Dirty owners and
-- intents stay, and the owners of these are in flight.
-- KEYS  pending (zset)  flushing (zset)  state (hash)  ready (text)  intents (hash)  in_flight (hash)  dirty (zset)
-- ARGV  1 epoch  2 first batch number of the epoch  3 name of the server, as it said before
--       4 fingerprint of the declaration that is in force from now on
-- Reply 1 if the epoch was started
if is_out_of_use(redis.call('GET', ready)) then return LEFT end
local current = redis.call('HGET', state, 'epoch')
-- rule: epoch
if (tonumber(current) or 0) >= tonumber(ARGV[1]) then return 0 end
redis.call('UNLINK', pending, flushing, in_flight) -- a script whose first write is this also runs without memory
redis.call('HDEL', state, 'waiting_since', 'flushing_since', 'batch_id', 'heartbeat_at', 'awaited')
-- rule: ready
redis.call('SET', ready, ARGV[1] .. ':' .. ARGV[4] .. '?')
for _, entry in ipairs(redis.call('HVALS', intents)) do
  local intent = intent_of(entry)
  -- rule: flying
  if intent and not intent.grounded then
    for _, owner in ipairs(intent.owners) do take_off(owner, ARGV[1]) end
  end
end
redis.call('HSET', state, 'epoch', ARGV[1], 'batch', ARGV[2], 'server', ARGV[3], 'declared', ARGV[4], 'dirty',
  redis.call('ZCARD', dirty))
return 1
