-- Gives back an answer that is not generated here any more: release.lua PREFIX ID REPLICA FENCE WHY. Returns whether
-- it was still ours. The next replica that has a reader of it may take it; if WHY is 'differs', another one than this.
local answer = ARGV[1] .. 'a:' .. ARGV[2]
local known = redis.call('HMGET', answer, 'o', 'f', 'd')
if known[1] ~= ARGV[3] or known[2] ~= ARGV[4] then return 0 end
redis.call('HSET', answer, 'o', '')
if ARGV[5] == 'differs' then
    redis.call('HSET', answer, 'd', (known[3] or '') .. ARGV[3] .. ' ', 'w', redis.call('TIME')[1])
end
return 1
