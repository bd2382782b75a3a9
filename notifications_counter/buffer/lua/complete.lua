-- Ends a recovery: from now on readers trust the counters of this epoch.
-- KEYS  1 ready (integer)  2 state (hash)
-- ARGV  1 epoch
-- Reply 1 if it is the first to do so, and Redis is still in this epoch under the server that was recovered
local about = redis.call('HMGET', KEYS[2], 'epoch', 'completed', 'server')
if about[1] ~= ARGV[1] or about[2] == ARGV[1] then return 0 end
if about[3] ~= redis.call('INFO', 'server'):match('run_id:(%w+)') then return 0 end
redis.call('HSET', KEYS[2], 'completed', ARGV[1])
redis.call('SET', KEYS[1], ARGV[1])
return 1
