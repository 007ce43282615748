-- Appends to the logs of answers: append.lua PREFIX REPLICA RUNNING_MS ENDED_MS LEASE_MS, and for each answer
-- ID FENCE OFFSET STATE TOKEN BYTES REQUEST EPOCHS. Returns for each: what became of it, the log's length, whether
-- another replica reads it.
-- An answer is its owner's alone, as long as nobody has taken it over with a higher fence: what an owner sends
-- that slept meanwhile is refused, though the answer may have ended and be gone. Bytes that are there already are
-- not appended again. Where the store has lost an answer, and its older owner was the first to write it again, the
-- newer one writes it once more.
local prefix, replica, running_ms, ended_ms = unpack(ARGV, 1, 4)
-- 2^52, above the fence of any replica: nobody writes again what has it. The same in stop, read and remove.lua.
local final_fence = '4503599627370496'
-- Who writes lives, unless the store has forgotten it: then it says so itself, and learns that it was forgotten.
redis.call('PEXPIRE', prefix .. 'p:' .. replica, ARGV[5])
local out = {}
for i = 6, #ARGV, 8 do
    local id, fence, offset, state, token, bytes, request, epochs = unpack(ARGV, i, i + 7)
    local answer, log = prefix .. 'a:' .. id, prefix .. 'g:' .. id
    local known = redis.call('HMGET', answer, 'f', 'o', 's')
    local outcome, head = 'stored', 0
    offset = tonumber(offset)
    local is_over = state == 'stopped' or state == 'lost'
    local known_fence = tonumber(known[1] or redis.call('GET', prefix .. 'x:' .. id) or '0')
    local is_new = not known[1] or known_fence < tonumber(fence)
    if known[3] == 'stopped' then
        outcome = 'stopped'
    elseif known_fence > tonumber(fence) then
        outcome = 'taken'
    elseif is_new and (offset > 0 or is_over) then
        outcome = 'lost'
    elseif is_new then
        redis.call('DEL', log)
        redis.call('HSET', answer, 'f', fence, 'o', replica, 's', 'running', 't', token, 'q', request, 'e', epochs)
    elseif known[2] ~= replica then
        outcome = 'taken'
    end
    if outcome == 'stored' then
        head = redis.call('STRLEN', log)
        if is_over then
            redis.call('HSET', answer, 's', state)
            redis.call('DEL', log)
            redis.call('PEXPIRE', answer, ended_ms)
            -- Nobody writes it again, though the answer itself is forgotten soon.
            redis.call('SET', prefix .. 'x:' .. id, final_fence, 'PX', running_ms)
        elseif head < offset then
            outcome = 'lost'
        else
            local new = string.sub(bytes, head - offset + 1)
            if #new > 0 then head = redis.call('APPEND', log, new) end
            redis.call('HSET', answer, 's', state, 'h', head)
            local keep_ms = state == 'ended' and ended_ms or running_ms
            redis.call('PEXPIRE', answer, keep_ms)
            redis.call('PEXPIRE', log, keep_ms)
        end
    end
    out[#out + 1] = outcome
    out[#out + 1] = head
    out[#out + 1] = redis.call('EXISTS', prefix .. 'r:' .. id)
end
return out
