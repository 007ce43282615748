-- Stops an answer, whoever its owner is: stop.lua PREFIX ID KEEP_MS. The owner learns of it when it writes next.
local prefix, id = ARGV[1], ARGV[2]
if redis.call('EXISTS', prefix .. 'a:' .. id) == 0 then return 0 end
redis.call('HSET', prefix .. 'a:' .. id, 's', 'stopped')
redis.call('DEL', prefix .. 'g:' .. id)
redis.call('PEXPIRE', prefix .. 'a:' .. id, ARGV[3])
return 1
