-- Code that several scripts share. Each script is sent behind it.
-- The beginning of all keys of a log, on the same node of a cluster
local base = KEYS[1]:match('(.*):')

-- Returns the key of an event, given its id or a member of a set.
local function event_of(id) return base .. ':event:' .. string.format('%.0f', tonumber(id)) end
