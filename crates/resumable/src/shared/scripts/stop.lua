-- Stops an answer, whoever its owner is: stop.lua PREFIX ID KEEP_MS FENCE_MS. The owner learns of it when it writes
-- next, and writes nothing of it though it slept for longer than the answer is remembered. Nor does anybody whose
-- write comes late, or who would write again what the store has lost.
local prefix, id = ARGV[1], ARGV[2]
-- 2^52, above the fence of any replica: nobody writes again what has it. The same in append, read and remove.lua.
local final_fence = '4503599627370496'
redis.call('SET', prefix .. 'x:' .. id, final_fence, 'PX', ARGV[4])
-- Of an answer whose other key was evicted, the log may be left.
redis.call('DEL', prefix .. 'g:' .. id)
if redis.call('EXISTS', prefix .. 'a:' .. id) == 0 then return 0 end
redis.call('HSET', prefix .. 'a:' .. id, 's', 'stopped')
redis.call('PEXPIRE', prefix .. 'a:' .. id, ARGV[3])
return 1
