-- Announces a replica: announce.lua PREFIX REPLICA LEASE_MS ENDED_MS. It lives; a lease of 0 ends it, which is
-- remembered for ENDED_MS. Returns whether it was known to live.
local key = ARGV[1] .. 'p:' .. ARGV[2]
local known = redis.call('EXISTS', key)
if ARGV[3] ~= '0' then
    redis.call('SET', key, 1, 'PX', ARGV[3])
else
    redis.call('DEL', key)
    redis.call('SET', ARGV[1] .. 'd:' .. ARGV[2], 1, 'PX', ARGV[4])
end
return known
