-- Looks for overdue intents, and reads when the flusher ran last.
-- KEYS  intents (hash)  last_run (text)
-- ARGV  1 age in seconds from which an intent is overdue, as is one that was announced in the future  2 intents to look
--       at, fewer if they are large
-- Reply the number of overdue intents, last_run or ''
local now, cursor, looked, overdue = tonumber(redis.call('TIME')[1]), '0', 0, 0
repeat
  local page = redis.call('HSCAN', intents, cursor, 'COUNT', 100)
  cursor = page[1]
  for i = 2, #page[2], 2 do
    local intent = page[2][i]
    local began = intent:match('"began":(%d+)') -- quotes in an owner's key are escaped, so that is no match
    local age = now - tonumber(began or now)
    if age >= tonumber(ARGV[1]) or age < 0 then overdue = overdue + 1 end
    looked = looked + 1 + math.floor(#intent / 1000)
  end
until cursor == '0' or looked >= tonumber(ARGV[2])
return {overdue, redis.call('GET', last_run) or ''}
