-- Reads the statistics of a shard, and looks for overdue intents.
-- KEYS  intents (hash)  stats (hash)
-- ARGV  1 age in seconds from which an intent is overdue, as is one that was announced in the future  2 intents to look
--       at, fewer if they are large
-- Reply the number of overdue intents, the age of the oldest one in seconds, then field, value, … of stats
local now, cursor, looked, overdue, oldest = tonumber(redis.call('TIME')[1]), '0', 0, 0, 0
repeat
  local page = redis.call('HSCAN', intents, cursor, 'COUNT', 100)
  cursor = page[1]
  for i = 2, #page[2], 2 do
    local intent = page[2][i]
    local began = intent:match('"began":(%d+)') -- quotes in an owner's key are escaped, so that is no match
    local age = now - tonumber(began or now)
    if age >= tonumber(ARGV[1]) or age < 0 then overdue = overdue + 1 end
    oldest = math.max(oldest, age)
    looked = looked + 1 + math.floor(#intent / 1000)
  end
until cursor == '0' or looked >= tonumber(ARGV[2])
return {overdue, oldest, unpack(redis.call('HGETALL', stats))}
