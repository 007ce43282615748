-- Returns the notices of the other replicas that live: others.lua PREFIX REPLICA MOST_BYTES. Forgets those that have
-- ended. A notice is the value of a replica's lease (announce.lua).
local all, notices = ARGV[1] .. 'v', {}
-- The latest ones: whoever was killed long ago may still be behind them.
for _, replica in ipairs(redis.call('ZREVRANGE', all, 0, 999)) do
    local notice = redis.call('GET', ARGV[1] .. 'p:' .. replica)
    if not notice then
        redis.call('ZREM', all, replica)
    elseif replica ~= ARGV[2] then
        notices[#notices + 1] = string.sub(notice, 1, tonumber(ARGV[3]))
    end
end
return notices
