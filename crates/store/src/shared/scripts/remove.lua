-- Deletes an object: remove.lua PREFIX AGE_S OWNER KIND ID KEEP_MS. Returns whether there was one that is not too old.
-- Nothing is stored of its answer any more, also if that is complete: its replica may not know that the store has it,
-- and try again. Its fence is final.
-- Deletes what is too old: remove.lua PREFIX AGE_S.
local prefix = ARGV[1]
local weights, total = prefix .. 'w', prefix .. 'b'
-- One clock decides for all replicas: one that is ahead deletes nothing of the others.
local cutoff = string.format('%016x', math.max(0, redis.call('TIME')[1] - ARGV[2]))

local function drop(of, member)
    local object = prefix .. 'o:' .. of .. ':' .. string.sub(member, 33)
    local bytes = tonumber(redis.call('HGET', object, 'b') or '0')
    redis.call('INCRBY', total, -bytes)
    if tonumber(redis.call('ZINCRBY', weights, -bytes, of)) <= 0 then
        redis.call('ZREM', weights, of)
    end
    redis.call('DEL', object)
    redis.call('ZREM', prefix .. 'l:' .. of, member)
end

if #ARGV == 2 then
    -- Bounded, since nothing else runs meanwhile; the next sweep goes on from the owner where this one ends.
    local left, cursor = 1000, prefix .. 'c'
    local at = tonumber(redis.call('GET', cursor) or '0')
    local owners = redis.call('ZRANGE', weights, at, at + 9999)
    for _, owner in ipairs(owners) do
        local list = prefix .. 'l:' .. owner
        for _, member in ipairs(redis.call('ZRANGEBYLEX', list, '-', '(' .. cutoff, 'LIMIT', 0, left)) do
            drop(owner, member)
            left = left - 1
        end
        if left == 0 then break end
        -- One that has nothing left is gone from the order.
        if redis.call('ZSCORE', weights, owner) then at = at + 1 end
    end
    if left > 0 and #owners < 10000 then at = 0 end
    redis.call('SET', cursor, at)
    return 1
end

-- 2^52, above the fence of any replica: nobody writes again what has it. The same in stop, append and read.lua.
local final_fence = '4503599627370496'
local owner, kind, id, keep_ms = unpack(ARGV, 3, 6)
local name = owner .. ':' .. kind .. id
local member = redis.call('HGET', prefix .. 'o:' .. name, 'm')
if not member then return 0 end
redis.call('SET', prefix .. 'x:' .. name, final_fence, 'PX', keep_ms)
drop(owner, member)
return string.sub(member, 1, 16) >= cutoff and 1 or 0
