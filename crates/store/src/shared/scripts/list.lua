-- Reads a part of a list: list.lua PREFIX OWNER KIND FROM TO NEWEST_FIRST MOST_BYTES MOST_PART_BYTES AGE_S.
-- Returns where the part ends, and four values for each of its objects, as get.lua does. FROM or TO is 'oldest' for
-- the oldest that is not too old.
local prefix, owner, kind, from, to, newest_first = unpack(ARGV, 1, 6)
local most_bytes, room = tonumber(ARGV[7]), tonumber(ARGV[8])
local oldest = string.format('[%016x', math.max(0, redis.call('TIME')[1] - ARGV[9]))
if from == 'oldest' then from = oldest end
if to == 'oldest' then to = oldest end
local order = newest_first == '1' and 'ZREVRANGEBYLEX' or 'ZRANGEBYLEX'
local members = redis.call(order, prefix .. 'l:' .. owner, from, to, 'LIMIT', 0, 64)
local part = {members[1] or ''}
for _, member in ipairs(members) do
    local object = prefix .. 'o:' .. owner .. ':' .. string.sub(member, 33)
    if string.sub(member, 33, 33) == kind then
        local bytes = redis.call('HSTRLEN', object, 'j')
        if bytes > room and #part > 1 then break end
        if bytes > 0 and bytes <= most_bytes then
            local fields = redis.call('HMGET', object, 'p', 'r', 'j')
            part[#part + 1] = string.sub(member, 1, 512)
            part[#part + 1] = string.sub(fields[1] or '', 1, 16)
            local lives = redis.call('EXISTS', prefix .. 'p:' .. (fields[2] or '')) == 1
            part[#part + 1] = lives and 'lives' or 'silent'
            part[#part + 1] = fields[3]
            room = room - bytes
        end
    end
    part[1] = string.sub(member, 1, 512)
end
return part
