-- Gives back an answer that was taken over and is not generated: release.lua PREFIX ID REPLICA FENCE. Returns whether
-- it was still ours. The next replica that has a reader of it may take it.
local answer = ARGV[1] .. 'a:' .. ARGV[2]
local known = redis.call('HMGET', answer, 'o', 'f')
if known[1] ~= ARGV[3] or known[2] ~= ARGV[4] then return 0 end
redis.call('HSET', answer, 'o', '')
return 1
