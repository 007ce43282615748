-- Takes over an answer whose owner has ended: take.lua PREFIX ID REPLICA MOST_BYTES. Returns whether it is
-- ours now, the new fence, the log's length, and the request, if that has at most MOST_BYTES.
local prefix, id, replica, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local answer = prefix .. 'a:' .. id
local known = redis.call('HMGET', answer, 'o', 's')
local is_free = known[2] == 'running' and redis.call('EXISTS', prefix .. 'p:' .. (known[1] or '')) == 0
local bytes = redis.call('HSTRLEN', answer, 'q')
if not is_free then return {'others', 0, 0, ''} end
if bytes == 0 or bytes > most then return {'never', 0, 0, ''} end
local fence = redis.call('HINCRBY', answer, 'f', 1)
redis.call('HSET', answer, 'o', replica)
return {'ours', fence, redis.call('STRLEN', prefix .. 'g:' .. id), redis.call('HGET', answer, 'q')}
