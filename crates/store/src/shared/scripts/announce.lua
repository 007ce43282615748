-- Announces a replica: announce.lua PREFIX REPLICA LEASE_MS ENDED_MS NOTICE. It lives; a lease of 0 ends it, which is
-- remembered for ENDED_MS. Returns whether it was known to live. others.lua reads its NOTICE, which an older replica
-- does not have.
local key, all = ARGV[1] .. 'p:' .. ARGV[2], ARGV[1] .. 'v'
if ARGV[3] == '0' then
    local known = redis.call('DEL', key)
    redis.call('ZREM', all, ARGV[2])
    redis.call('SET', ARGV[1] .. 'd:' .. ARGV[2], 1, 'PX', ARGV[4])
    return known
end
-- First: unlike SET, this is allowed where the store's memory is full, and after it SET is too. Who lives then is not
-- taken for dead.
local known, notice = redis.call('PEXPIRE', key, ARGV[3]), ARGV[5] or '1'
if redis.call('GET', key) ~= notice then redis.call('SET', key, notice, 'PX', ARGV[3]) end
if ARGV[5] then redis.call('ZADD', all, redis.call('TIME')[1], ARGV[2]) end
return known
