-- Caches totals of owners who are not in flight, if the caller still has their leases.
-- KEYS  ready (text)  intents (hash)  in_flight (hash)  leases (hash)
-- ARGV  1 ready  2 token of the leases  3 seconds to live  4 the owners, as JSON
--       5 their totals, as JSON, '' to end only the lease
-- Reply the number of owners whose totals were cached
if redis.call('GET', ready) ~= ARGV[1] then return 0 end
local owners, totals = cjson.decode(ARGV[4]), cjson.decode(ARGV[5])
local held, flying, mine, kept = redis.call('HMGET', leases, unpack(owners)), which_fly(owners), {}, 0
for i, owner in ipairs(owners) do
  local is_mine = is_held(held[i], ARGV[2])
  if is_mine then mine[#mine + 1] = owner end
  -- rules: lease, fix_flying
  if is_mine and not flying[i] and totals[i] ~= '' then
    kept = kept + 1
    redis.call('SET', total_of(owner, ARGV[1]), totals[i], 'EX', ARGV[3])
  end
end
if #mine > 0 then redis.call('HDEL', leases, unpack(mine)) end
return kept
