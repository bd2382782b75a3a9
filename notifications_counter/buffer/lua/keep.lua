-- Caches totals, if nothing has changed since their snapshot.
-- KEYS  pending (zset)  flushing (zset)  state (hash)  ready (text)  in_flight (hash)  dirty (zset)
-- ARGV  1 ready  2 batch  3 '1' if it is not finished  4 seconds to live, then owner, pending, total for each
-- Reply the number of totals kept
if redis.call('GET', ready) ~= ARGV[1] or redis.call('HGET', state, 'batch') ~= ARGV[2] then return 0 end
-- rule: keep_cut
if ARGV[3] == '1' and redis.call('EXISTS', flushing) == 0 then return 0 end
local kept = 0
for i = 5, #ARGV, 3 do
  local owner = ARGV[i]
  local score = tonumber(redis.call('ZSCORE', pending, owner) or 0)
  -- rule: keep
  if score == tonumber(ARGV[i + 1]) and not redis.call('ZSCORE', dirty, owner) then
    -- rule: marked
    local mark = redis.call('HGET', in_flight, owner) and '!' or ''
    redis.call('SET', total_of(owner, ARGV[1]), ARGV[i + 2] .. mark, 'EX', ARGV[4])
    kept = kept + 1
  end
end
return kept
