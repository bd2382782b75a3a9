-- Turns all that is pending into a batch, unless one is under way.
-- KEYS  pending (zset)  flushing (zset)  state (hash)  ready (text)  aside (hash)
-- ARGV  1 generation  2 mark in the database  3 id for a new batch
-- Reply the id of the batch and its size with the sentinel, '' and 0 if nothing waits, or Redis has lost something; and
--       how many owners were set aside
local about = redis.call('HMGET', state, 'generation', 'batch', 'finished')
local batch, ready_now = about[2] ~= '' and about[2], redis.call('GET', ready)
-- rule: agree
local agrees = about[3] == ARGV[2] or batch and batch == ARGV[2]:match('^%x+')
-- rules: generation, ready, sentinel
local is_whole = redis.call('ZSCORE', pending, SENTINEL)
if about[1] ~= ARGV[1] or not ready_now or not agrees or not is_whole then return {'', 0, 0} end
if batch then
  local is_there = redis.call('ZSCORE', flushing, SENTINEL)
  return is_there and {batch, redis.call('ZCARD', flushing), redis.call('HLEN', aside)} or {'', 0, 0}
end
redis.call('HDEL', state, '') -- no such field; a script whose first write is this also runs without memory
redis.call('HSET', state, 'cut_at', redis.call('TIME')[1])
if redis.call('ZCARD', pending) == 1 then return {'', 0, 0} end
redis.call('RENAME', pending, flushing)
redis.call('ZADD', pending, 0, SENTINEL)
redis.call('HSET', state, 'batch', ARGV[3])
return {ARGV[3], redis.call('ZCARD', flushing), redis.call('HLEN', aside)}
