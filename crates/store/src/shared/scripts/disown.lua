-- Leaves an object whose answer is incomplete to other replicas: disown.lua PREFIX OWNER KIND ID REPLICA. Returns
-- whether it was this replica's.
local object = ARGV[1] .. 'o:' .. ARGV[2] .. ':' .. ARGV[3] .. ARGV[4]
local known = redis.call('HMGET', object, 'p', 'r')
if known[1] ~= 'running' or known[2] ~= ARGV[5] then return 0 end
redis.call('HSET', object, 'r', '')
return 1
