-- Announces a replica: announce.lua PREFIX REPLICA LEASE_MS ENDED_MS. It lives; a lease of 0 ends it, which is
-- remembered for ENDED_MS. Returns whether it was known to live.
local key = ARGV[1] .. 'p:' .. ARGV[2]
if ARGV[3] == '0' then
    local known = redis.call('DEL', key)
    redis.call('SET', ARGV[1] .. 'd:' .. ARGV[2], 1, 'PX', ARGV[4])
    return known
end
-- Unlike SET, this is allowed where the store's memory is full: who lives then is not taken for dead.
local known = redis.call('PEXPIRE', key, ARGV[3])
if known == 0 then redis.call('SET', key, 1, 'PX', ARGV[3]) end
return known
