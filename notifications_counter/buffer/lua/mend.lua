-- Deletes foreign values that scripts cannot read, and has readers count rows until a generation begins: the script
-- that failed may have done half of its work.
-- KEYS  first (none), and the other keys of that script
-- ARGV  the type of each as TYPE calls it, 'none' for any
-- Reply nothing
-- nil for keys that belong to no shard, beside which a time-sliced counter or a type of events may be named ready.
local base = first:match('^({[^}]*}:' .. ('%x'):rep(16) .. '):[%l_]+$')
if base and redis.pcall('GET', base .. ':ready') == 'retired' then return end
for i, key in ipairs(KEYS) do
  local kind = redis.call('TYPE', key).ok
  if ARGV[i] ~= 'none' and kind ~= 'none' and kind ~= ARGV[i] then redis.call('UNLINK', key) end
end
if base then redis.call('DEL', base .. ':ready') end
