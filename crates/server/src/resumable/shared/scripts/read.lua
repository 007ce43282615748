-- Reads the logs of answers: read.lua PREFIX REPLICA READING_MS MOST_BYTES, and for each answer ID OFFSET. Returns
-- for each: its state, whether its owner lives, the log's length, and the log from OFFSET on; of all logs together
-- about MOST_BYTES. Notes that somebody reads them.
-- Who reads an answer does not generate it: one that is its own has no owner.
local prefix, replica, reading_ms, room = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local out = {}
for i = 5, #ARGV, 2 do
    local id, offset = ARGV[i], tonumber(ARGV[i + 1])
    local log = prefix .. 'g:' .. id
    local known = redis.call('HMGET', prefix .. 'a:' .. id, 's', 'o')
    local head, bytes = redis.call('STRLEN', log), ''
    if head > offset and room > 0 then
        bytes = redis.call('GETRANGE', log, offset, math.min(head, offset + room) - 1)
        room = room - #bytes
    end
    redis.call('SET', prefix .. 'r:' .. id, 1, 'PX', reading_ms)
    out[#out + 1] = string.sub(known[1] or 'unknown', 1, 16)
    out[#out + 1] = known[2] ~= replica and redis.call('EXISTS', prefix .. 'p:' .. (known[2] or '')) or 0
    out[#out + 1] = head
    out[#out + 1] = bytes
end
return out
