-- Ends a recovery: from now on readers trust the counters of this epoch.
-- KEYS  1 ready (integer)  2 state (hash)
-- ARGV  1 epoch
-- Reply 1 if Redis is still in this epoch under the server that was recovered
local about = redis.call('HMGET', KEYS[2], 'epoch', 'server')
if about[1] ~= ARGV[1] or about[2] ~= redis.call('INFO', 'server'):match('run_id:(%w+)') then return 0 end
redis.call('SET', KEYS[1], ARGV[1])
return 1
