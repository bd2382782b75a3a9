-- Ends a recovery: from now on readers trust the counters of this epoch.
-- KEYS  state (hash)  ready (integer)
-- ARGV  1 epoch  2 name of the server, as it says just before
-- Reply 1 if it is the first to do so, and Redis is still in this epoch under the server that was recovered
local recovery = redis.call('HMGET', state, 'epoch', 'completed', 'server')
if recovery[1] ~= ARGV[1] or recovery[2] == ARGV[1] then return 0 end
if recovery[3] ~= ARGV[2] then return 0 end
redis.call('HSET', state, 'completed', ARGV[1])
redis.call('SET', ready, ARGV[1])
return 1
