-- Caches counts of rows where the leases are still there: nothing was announced, confirmed or doubted meanwhile.
-- KEYS  ready (text)
-- ARGV  1 generation  2 token of the leases  3 seconds to live  4 owners, as JSON  5 their counts as texts, as JSON
local counts = cjson.decode(ARGV[5])
for i, owner in ipairs(cjson.decode(ARGV[4])) do
  local key = total_of(owner, ARGV[1])
  -- rule: lease
  if redis.pcall('GET', key) == '?' .. ARGV[2] then
    redis.call('SET', key, counts[i], 'EX', ARGV[3])
  end
end
