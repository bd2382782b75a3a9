-- Takes leases on owners whose totals are not cached, for a reader that is about to count their rows.
-- USES  ready (text)  intents (hash)  in_flight (hash)
-- ARGV  1 owners, as JSON  2 fingerprint of the declaration  3 token of the leases  4 seconds that they last
-- Reply the index of each owner with a lease
local owners, leased = cjson.decode(ARGV[1]), {}
local may_fly = redis.call('EXISTS', intents) == 1
local function flies(owner) return may_fly and redis.call('HEXISTS', in_flight, owner) == 1 end
-- rule: declared_read
if fingerprint ~= ARGV[2] or flies(EVERYONE) then return leased end
for i, owner in ipairs(owners) do
  -- rule: flying
  if not flies(owner) and redis.call('SET', total_of(owner), '?' .. ARGV[3], 'NX', 'EX', ARGV[4]) then
    leased[#leased + 1] = i
  end
end
return leased
