-- Raises the fence of an object: fence.lua PREFIX OWNER KIND ID FENCE KEEP_MS. Whoever generates its answer with a
-- lower one does not store it any more. Returns whether no other fence is higher.
local fence = ARGV[1] .. 'x:' .. ARGV[2] .. ':' .. ARGV[3] .. ARGV[4]
if tonumber(redis.call('GET', fence) or '0') > tonumber(ARGV[5]) then return 0 end
redis.call('SET', fence, ARGV[5], 'PX', ARGV[6])
return 1
