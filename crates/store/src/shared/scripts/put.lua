-- Stores an object: put.lua PREFIX OWNER KIND ID CREATED AGE_S MODE PROGRESS REPLICA JSON BYTES
-- OWNER_LIMIT LIMIT FENCE. Returns 1, or 0 if there was none to replace, or it is not to be completed with FENCE:
-- its answer was taken over with a higher one, or is complete already, and may have been changed since, and the reply
-- was lost; or a checkpoint comes behind the end, over a connection that stood still.
-- An owner's list has members that sort as their objects do: time, number (16 hex digits each), kind, id.
local prefix, owner, kind, id, created, age = unpack(ARGV, 1, 6)
local mode, progress, replica, json = unpack(ARGV, 7, 10)
local bytes, owner_limit, limit = tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
-- One clock decides for all replicas what is too old: one that is ahead makes nothing that outlives the rest.
local now = redis.call('TIME')[1]
local cutoff = string.format('%016x', math.max(0, now - age))
local today = string.format('%016x', now)
if created > today then created = today end
local weights, total = prefix .. 'w', prefix .. 'b'

local function weigh(of, change)
    redis.call('INCRBY', total, change)
    if tonumber(redis.call('ZINCRBY', weights, change, of)) <= 0 then
        redis.call('ZREM', weights, of)
    end
end

local function drop(of, member)
    local object = prefix .. 'o:' .. of .. ':' .. string.sub(member, 33)
    weigh(of, -tonumber(redis.call('HGET', object, 'b') or '0'))
    redis.call('DEL', object)
    redis.call('ZREM', prefix .. 'l:' .. of, member)
end

local object = prefix .. 'o:' .. owner .. ':' .. kind .. id
local member = redis.call('HGET', object, 'm')
if member and string.sub(member, 1, 16) < cutoff then
    drop(owner, member)
    member = false
end
if not member and mode == 'replace' then
    return 0
end
if mode == 'complete' or mode == 'checkpoint' then
    local newest = tonumber(redis.call('GET', prefix .. 'x:' .. owner .. ':' .. kind .. id) or '1')
    local fence = tonumber(ARGV[14])
    if fence < newest or mode == 'complete' and member then return 0 end
    if progress == 'running' and redis.call('HGET', object, 'p') == 'ended' then return 0 end
end
local before = 0
if member then
    before = tonumber(redis.call('HGET', object, 'b'))
else
    member = created .. string.format('%016x', redis.call('INCR', prefix .. 'n')) .. kind .. id
    redis.call('ZADD', prefix .. 'l:' .. owner, 0, member)
end
redis.call('HSET', object, 'm', member, 'b', bytes, 'p', progress, 'r', replica, 'j', json)
weigh(owner, bytes - before)

local function oldest_but(fresh)
    -- The owner with the most pays; one that has nothing but the new object is passed over.
    for rank = 0, 1 do
        local heaviest = redis.call('ZREVRANGE', weights, rank, rank)[1]
        if not heaviest then return end
        for _, found in ipairs(redis.call('ZRANGE', prefix .. 'l:' .. heaviest, 0, 1)) do
            if found ~= fresh then return heaviest, found end
        end
    end
end

-- Bounded, since nothing else runs meanwhile; the next object that is put goes on.
for _ = 1, 1000 do
    local most = redis.call('ZREVRANGE', weights, 0, 0, 'WITHSCORES')[2]
    local all = tonumber(redis.call('GET', total) or '0')
    if all <= limit and tonumber(most or '0') <= owner_limit then break end
    local of, goes = oldest_but(member)
    if not goes then break end
    drop(of, goes)
end
return 1
