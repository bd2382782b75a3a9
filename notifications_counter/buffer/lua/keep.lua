-- Caches totals, if nothing has moved since their snapshot.
-- KEYS  1 state (hash)  2 ready (integer)  3 pending (zset)  4 dirty (zset)  5 flushing (zset)
-- ARGV  1 base of the shard's keys  2 ready  3 batch  4 '1' if it is not finished  5 seconds to live, then user,
--       pending, total for each
-- Reply the number of totals kept
if redis.call('GET', KEYS[2]) ~= ARGV[2] or redis.call('HGET', KEYS[1], 'batch') ~= ARGV[3] then return 0 end
if ARGV[4] == '1' and redis.call('EXISTS', KEYS[5]) == 0 then return 0 end
local kept = 0
for i = 6, #ARGV, 3 do
  local pending = tonumber(redis.call('ZSCORE', KEYS[3], ARGV[i]) or 0)
  if pending == tonumber(ARGV[i + 1]) and not redis.call('ZSCORE', KEYS[4], ARGV[i]) then
    redis.call('SET', ARGV[1] .. ':total:' .. ARGV[2] .. ':' .. ARGV[i], ARGV[i + 2], 'EX', ARGV[5])
    kept = kept + 1
  end
end
return kept
