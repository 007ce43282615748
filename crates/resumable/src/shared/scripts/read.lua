-- Reads the logs of answers: read.lua PREFIX REPLICA READING_MS MOST_BYTES LEASE_MS, and for each answer ID OFFSET.
-- Returns for each: its state, what is known of its owner, the log's length, the log from OFFSET on, and its epochs;
-- of all logs together about MOST_BYTES. Notes that somebody reads them.
-- Who reads an answer does not generate it: one that is its own has no owner.
local prefix, replica, reading_ms, room = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
-- 2^52, above the fence of any replica: nobody writes again what has it. The same in stop, append and remove.lua.
local final_fence = '4503599627370496'
redis.call('PEXPIRE', prefix .. 'p:' .. replica, ARGV[5])

local function owner_state(owner)
    if not owner or owner == '' or owner == replica then return 'none' end
    if redis.call('EXISTS', prefix .. 'p:' .. owner) == 1 then return 'lives' end
    -- It has said that it ends, or it is silent.
    return redis.call('EXISTS', prefix .. 'd:' .. owner) == 1 and 'none' or 'silent'
end

local out = {}
for i = 6, #ARGV, 2 do
    local id, offset = ARGV[i], tonumber(ARGV[i + 1])
    local log = prefix .. 'g:' .. id
    local known = redis.call('HMGET', prefix .. 'a:' .. id, 's', 'o', 'e')
    local state = known[1]
    if not state and redis.call('GET', prefix .. 'x:' .. id) == final_fence then
        -- It was stopped after its other key was evicted: who has a copy learns of it.
        state = 'stopped'
    end
    local head, bytes = redis.call('STRLEN', log), ''
    if head > offset and room > 0 then
        bytes = redis.call('GETRANGE', log, offset, math.min(head, offset + room) - 1)
        room = room - #bytes
    end
    redis.call('SET', prefix .. 'r:' .. id, 1, 'PX', reading_ms)
    out[#out + 1] = string.sub(state or 'unknown', 1, 16)
    out[#out + 1] = owner_state(known[2])
    out[#out + 1] = head
    out[#out + 1] = bytes
    out[#out + 1] = string.sub(known[3] or '', 1, 8192)
end
return out
