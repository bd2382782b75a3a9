-- Takes leases on owners whose totals are not cached, for a reader that is about to count their rows.
-- KEYS  ready (text)  intents (hash)  in_flight (hash)
-- ARGV  1 owners, as JSON  2 fingerprint of the declaration  3 token of the leases  4 seconds that they last
-- Reply the generation, '' if nothing may be cached; then the index of each owner with a lease
local owners, ready_now = cjson.decode(ARGV[1]), redis.call('GET', ready)
local generation, fingerprint = (ready_now or ''):match('(%x*):(.*)')
local flying, is_everyone = which_fly(owners)
-- rule: declared_read
if fingerprint ~= ARGV[2] or is_everyone then return {''} end
local reply = {generation}
for i, owner in ipairs(owners) do
  -- rule: flying
  if not flying[i] and redis.call('SET', total_of(owner, ready_now), '?' .. ARGV[3], 'NX', 'EX', ARGV[4]) then
    reply[#reply + 1] = i
  end
end
return reply
