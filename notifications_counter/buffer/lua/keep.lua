-- Caches totals of owners, or the counts of a group, if the caller still has the leases, and nobody is in flight.
-- KEYS  ready (text)  intents (hash)  in_flight (hash)  leases (hash)
-- ARGV  1 ready  2 token of the leases  3 seconds to live  4 the owners, or one group, as JSON
--       5 their totals, as JSON, '' to end only the lease; for the group a list: last value, count, …
--       6 how many counts of the group were sent before, which Redis may have lost  7 '1' if more follow
-- Reply the number of owners, or 1 for the group, that were cached
if redis.call('GET', ready) ~= ARGV[1] then return 0 end
local owners, totals = cjson.decode(ARGV[4]), cjson.decode(ARGV[5])
local held, flying, mine, kept = redis.call('HMGET', leases, unpack(owners)), which_fly(owners), {}, 0
for i, owner in ipairs(owners) do
  local is_mine = is_held(held[i], ARGV[2])
  if is_mine then mine[#mine + 1] = owner end
  -- rules: lease, fix_flying
  if is_mine and not flying[i] and totals[i] ~= '' then
    kept = kept + 1
    if type(totals[i]) == 'string' then
      redis.call('SET', total_of(owner, ARGV[1]), totals[i], 'EX', ARGV[3])
    else
      local group = group_of(owner, ARGV[1])
      if redis.call('HLEN', group) ~= tonumber(ARGV[6]) then
        redis.call('HDEL', leases, owner)
        return 0
      end
      if #totals[i] > 0 then redis.call('HSET', group, unpack(totals[i])) end
      if ARGV[7] == '' then redis.call('HSET', group, '', 1) end
      redis.call('EXPIRE', group, ARGV[3])
    end
  end
end
if #mine > 0 and ARGV[7] == '' then redis.call('HDEL', leases, unpack(mine)) end
return kept
