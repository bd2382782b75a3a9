-- Deletes foreign values that scripts cannot read, and has readers count rows until a new epoch begins: the script that
-- failed may have done half of its work.
-- KEYS  first (none), and the other keys of that script
-- ARGV  the type of each as TYPE calls it, 'none' for any
-- Reply nothing
-- nil for keys that belong to no shard, beside which a time-sliced counter or a type of events may be named ready.
local base = first:match('^({[^}]*}:' .. ('%x'):rep(16) .. '):[%l_]+$')
if base and is_out_of_use(redis.pcall('GET', base .. ':ready')) then return end
for i, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  if ARGV[i] ~= 'none' and kind ~= 'none' and kind ~= ARGV[i] then redis.call('UNLINK', key) end
end
if not base then return end
if redis.call('TYPE', base .. ':state').ok == 'hash' then
  local texts = {declared = true, awaited = true, server = true, batch_id = true}
  local about = redis.call('HGETALL', base .. ':state')
  for i = 1, #about, 2 do
    if not texts[about[i]] and not about[i + 1]:match('^%d+$') then redis.call('HDEL', base .. ':state', about[i]) end
  end
end
if redis.call('TYPE', base .. ':intents').ok == 'hash' then
  local entries = redis.call('HGETALL', base .. ':intents')
  for i = 1, #entries, 2 do
    if not intent_of(entries[i + 1]) then redis.call('HDEL', base .. ':intents', entries[i]) end
  end
end
redis.call('DEL', base .. ':ready')
