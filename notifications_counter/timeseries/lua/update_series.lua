-- Counts at every precision. Only a new slice costs more than the increment: it adds its counter to known, and says when
-- both expire.
-- KEYS  known (zset), then for each name its hash at each precision: slice start → count
-- ARGV  1 time in seconds ('': the server's)  2 samples  3 number of precisions, then these, coarsest first, so that a
--       count that is too large is refused before anything is written; then for each name its count
-- Reply nothing
local known, present = KEYS[1], tonumber(redis.call('TIME')[1])
local time = tonumber(ARGV[1]) or present
local samples, precisions = tonumber(ARGV[2]), tonumber(ARGV[3])
local last = 0

-- Never brings the end forward. EXPIREAT has no GT before Redis 7.
local function expire(key, at)
  if redis.call('TTL', key) < at - present then redis.call('EXPIREAT', key, at) end
end

-- Removes slices that reads no longer return, see get_counter().
local function trim(key, window)
  local slices, newest = redis.call('HKEYS', key), 0
  for _, slice in ipairs(slices) do newest = math.max(newest, tonumber(slice) or 0) end
  for _, slice in ipairs(slices) do
    if (tonumber(slice) or 0) <= math.min(newest, present) - window then redis.call('HDEL', key, slice) end
  end
end

for i = 2, #KEYS do
  local key, nth = KEYS[i], i - 2
  local precision = tonumber(ARGV[4 + nth % precisions])
  local count = ARGV[4 + precisions + math.floor(nth / precisions)]
  local slice, window = time - time % precision, samples * precision
  if redis.call('HINCRBY', key, slice, count) == tonumber(count) then
    redis.call('ZADD', known, 0, key:sub(#known:match('.*:') + 1))
    local ends = math.max(slice, present - present % precision) + window
    expire(key, ends)
    last = math.max(last, ends)
    -- No cleaner seems to run. Not at each new slice, in case reads return most of them.
    if redis.call('HLEN', key) % (2 * samples) == 0 then trim(key, window) end -- only faster
  end
end
if last > 0 then expire(known, last) end
