-- Caches counts of rows where the leases are still there: nothing was announced, confirmed or doubted meanwhile.
-- USES  ready (text)
-- ARGV  1 token of the leases  2 seconds to live  3 owners, as JSON  4 their counts as texts, as JSON
local counts = cjson.decode(ARGV[4])
for i, owner in ipairs(cjson.decode(ARGV[3])) do
  local key = total_of(owner)
  -- rule: lease
  if redis.pcall('GET', key) == '?' .. ARGV[1] then
    redis.call('SET', key, counts[i], 'EX', ARGV[2])
  end
end
