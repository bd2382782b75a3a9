-- Registers the keys as those of a database. If another database was at this address before, leaves its keys for good,
-- and moves its intents here: their owners are recounted under the new keys. If Redis is behind the database, deletes
-- ready, so readers count rows.
-- KEYS  state (hash)  ready (text)  intents (hash)  in_flight (hash)  database (text)
-- ARGV  1 id of the database  2 seconds after which the lasting keys of a test database expire, '' for others
--       3 epoch that the database knows
-- Reply 1 if Redis is in an earlier epoch, or the shard is retired; an error if these keys were left
local ready_now = redis.call('GET', ready)
if ready_now == 'retired' then return 1 end
-- rule: last
if ready_now == 'left' then return LEFT end
local function set(key, value)
  if ARGV[2] == '' then redis.call('SET', key, value) else redis.call('SET', key, value, 'EX', ARGV[2]) end
end
local before = redis.call('GET', database)
if before and before ~= ARGV[1] then
  local old = base:match('(.*):') .. ':' .. before .. ':'
  local moved = redis.call('HGETALL', old .. 'intents')
  for i = 1, #moved, 2 do
    local intent = intent_of(moved[i + 1])
    if intent then
      intent.ready, intent.grounded, intent.checked = '', nil, intent.began
      moved[i + 1] = cjson.encode(intent)
      -- rule: aloft
      for _, owner in ipairs(intent.owners) do take_off(owner, ready_now) end
    end
    -- rule: along
    redis.call('HSET', intents, moved[i], moved[i + 1])
  end
  for _, name in ipairs({'pending', 'flushing', 'state', 'intents', 'in_flight', 'dirty', 'rejected'}) do
    redis.call('UNLINK', old .. name)
  end
  -- rule: leave
  set(old .. 'ready', 'left')
end
if before ~= ARGV[1] then set(database, ARGV[1]) end
if not is_behind(ARGV[3]) then return 0 end
redis.call('DEL', ready)
return 1
