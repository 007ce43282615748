-- Takes over an object whose answer is incomplete and whose replica has ended: claim.lua PREFIX OWNER KIND ID REPLICA
-- KEEP_MS. Returns the new fence; nothing if it is not to be had.
-- Whoever asks does not generate the answer: an object that is its own was taken by a call whose reply was lost.
local prefix, replica = ARGV[1], ARGV[5]
local name = ARGV[2] .. ':' .. ARGV[3] .. ARGV[4]
local known = redis.call('HMGET', prefix .. 'o:' .. name, 'p', 'r')
local is_owned = known[2] ~= replica and redis.call('EXISTS', prefix .. 'p:' .. (known[2] or '')) == 1
if known[1] ~= 'running' or is_owned then return false end
local fence = tonumber(redis.call('GET', prefix .. 'x:' .. name) or '1') + 1
redis.call('SET', prefix .. 'x:' .. name, fence, 'PX', ARGV[6])
redis.call('HSET', prefix .. 'o:' .. name, 'r', replica)
return fence
