-- Counts at every precision. Only a new slice costs more than the increment: it adds its counter to known, sets when it
-- expires, and cleans up after a few other counters.
-- KEYS  known (zset), then for each name its hash at each precision: slice start → count
-- ARGV  1 time in seconds ('': the server's)  2 samples  3 number of precisions, then these, coarsest first, so that a
--       count that is too large is refused before anything is written; then for each name its count
-- Reply nothing
local known, present = KEYS[1], tonumber(redis.call('TIME')[1])
local time = tonumber(ARGV[1]) or present
local samples, precisions = tonumber(ARGV[2]), tonumber(ARGV[3])
local fields_expire = (redis.VALKEY_VERSION_NUM or 0) >= 0x090000 or (redis.REDIS_VERSION_NUM or 0) >= 0x070400
local slices, added, last = 0, 0, 0

-- Never brings the end forward. EXPIREAT has no GT before Redis 7.
local function expire(key, at)
  if redis.call('TTL', key) < at - present then redis.call('EXPIREAT', key, at) end
end

-- Removes slices that reads no longer return, see get_counter(): too old now, or for a counter with a clock of its own.
local function trim(key, window)
  local slices, newest, is_current = redis.call('HKEYS', key), 0, false
  for _, slice in ipairs(slices) do
    local start = tonumber(slice) or 0
    newest = math.max(newest, start)
    is_current = is_current or (start > present - window and start <= present)
  end
  local cutoff = (is_current and present or newest) - window
  for _, slice in ipairs(slices) do
    if (tonumber(slice) or 0) <= cutoff then redis.call('HDEL', key, slice) end
  end
end

for i = 2, #KEYS do
  local key, nth = KEYS[i], i - 2
  local precision = tonumber(ARGV[4 + nth % precisions])
  local count = ARGV[4 + precisions + math.floor(nth / precisions)]
  local slice = time - time % precision
  if redis.call('HINCRBY', key, slice, count) == tonumber(count) then
    slices = slices + 1
    added = added + redis.call('ZADD', known, 0, key:sub(#base + 2))
    local window = samples * precision
    local ends = slice + window
    if ends > present then
      if fields_expire then redis.call('HEXPIREAT', key, ends, 'FIELDS', 1, slice) end
      expire(key, ends)
    elseif redis.call('TTL', key) == -1 then -- the first slice of a counter with a clock of its own
      ends = present - present % precision + window
      redis.call('EXPIREAT', key, ends)
    end
    last = math.max(last, ends)
    -- No cleaner seems to run. Not at each new slice, in case reads return most of them.
    if redis.call('HLEN', key) % (2 * samples) == 0 then trim(key, window) end -- only faster
  end
end

if slices > 0 then
  expire(known, last)
  -- More looks than additions, so that known stays small although the server expires counters without a word.
  for _, member in ipairs(redis.call('ZRANDMEMBER', known, 2 * added + 1)) do
    if redis.call('EXISTS', base .. ':' .. member) == 0 then redis.call('ZREM', known, member) end
  end
end
