-- Takes over an answer whose owner has ended: take.lua PREFIX ID REPLICA MODE MOST_BYTES KEEP_MS. Returns whether it
-- is ours now, the new fence, the log's length, and the request, if that has at most MOST_BYTES. In the mode 'look'
-- nothing changes, and 'ours' says that it could be taken.
-- Whoever asks does not generate the answer: one that is its own was taken by a call whose reply was lost.
local prefix, id, replica, mode, most = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local answer = prefix .. 'a:' .. id
local known = redis.call('HMGET', answer, 'o', 's', 'f', 'h')
local is_owned = known[1] ~= replica and redis.call('EXISTS', prefix .. 'p:' .. (known[1] or '')) == 1
if known[2] ~= 'running' or is_owned then return {'others', 0, 0, ''} end
local bytes = redis.call('HSTRLEN', answer, 'q')
local head = redis.call('STRLEN', prefix .. 'g:' .. id)
-- Another log in place of one that was lost would have other offsets.
local is_whole = head == tonumber(known[4] or head)
if bytes == 0 or bytes > most or not is_whole then return {'never', 0, 0, ''} end
local fence = tonumber(known[3] or '0')
if mode == 'take' then
    fence = redis.call('HINCRBY', answer, 'f', 1)
    redis.call('HSET', answer, 'o', replica)
    -- It outlives the answer, for an owner that sleeps for longer than that.
    redis.call('SET', prefix .. 'x:' .. id, fence, 'PX', ARGV[6])
end
return {'ours', fence, head, redis.call('HGET', answer, 'q')}
