-- Takes over an answer whose owner has ended: take.lua PREFIX ID REPLICA MODE MOST_BYTES KEEP_MS HEAD STEP LAST_EPOCH
-- RETRY_S EPOCHS. Returns whether it is ours now, the new fence, the log's length, the request, if that has at most
-- MOST_BYTES, the epochs, and whether it is to end here where this replica has another answer too. In the mode 'look'
-- nothing changes, and 'ours' says that it could be taken.
-- Whoever asks does not generate the answer: one that is its own was taken by a call whose reply was lost.
-- What follows in the log is a new epoch: EPOCH:HEAD is added to those of earlier owners.
local prefix, id, replica, mode, most = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local answer = prefix .. 'a:' .. id
local owner, state, fence, stored, epochs, differ, since =
    unpack(redis.call('HMGET', answer, 'o', 's', 'f', 'h', 'e', 'd', 'w'))
local none = {'others', 0, 0, '', '', 0}
local is_owned = owner ~= replica and redis.call('EXISTS', prefix .. 'p:' .. (owner or '')) == 1
if state ~= 'running' or is_owned then return none end
local bytes = redis.call('HSTRLEN', answer, 'q')
local head = redis.call('STRLEN', prefix .. 'g:' .. id)
-- Another log in place of one that was lost would have other offsets.
local is_whole = head == tonumber(stored or head)
if bytes == 0 or bytes > most or not is_whole then return {'never', 0, 0, '', '', 0} end
-- One that had another answer leaves it to the others for a while. The third one ends it.
local _, tries = string.gsub(differ or '', ' ', ' ')
local has_tried = string.find(differ or '', replica, 1, true)
if has_tried and redis.call('TIME')[1] - since < tonumber(ARGV[10]) then return {'tried', 0, 0, '', '', 0} end
local is_last = (tries >= 2 or has_tried) and 1 or 0
fence, epochs = tonumber(fence or '0'), epochs or ''
if mode == 'take' then
    -- Another log of the same length has other owners. So has the log after this replica's own takeover, of which a
    -- call that comes late knows nothing.
    if head ~= tonumber(ARGV[7]) or epochs ~= ARGV[11] then return none end
    local epoch = tonumber(string.match(epochs, '(%d+):%d+$') or '0') + tonumber(ARGV[8])
    if epoch > tonumber(ARGV[9]) then return {'never', 0, 0, '', '', 0} end
    fence = redis.call('HINCRBY', answer, 'f', 1)
    epochs = epochs .. (epochs == '' and '' or ',') .. string.format('%d:%d', epoch, head)
    redis.call('HSET', answer, 'o', replica, 'e', epochs)
    -- It outlives the answer, for an owner that sleeps for longer than that.
    redis.call('SET', prefix .. 'x:' .. id, fence, 'PX', ARGV[6])
end
return {'ours', fence, head, redis.call('HGET', answer, 'q'), epochs, is_last}
